//! Actions on a bond and on its members. These are few, and the uplink may be given others as a
//! whole: they are looked for anew each time.

use super::draft::{Draft, missing};
use super::{Fault, Kind, Refused};
use crate::config::{Bond, BondMember};
use crate::problem::nearest;
use crate::read::thing;
use crate::write::{self, Keys};
use datapath::bond::Mode;

/// The key of an action on a bond that no configuration has: the member that is active from now on.
pub const ACTIVE: &str = "active";

/// Adds a member.
pub(super) fn add(draft: &mut Draft, switch: &str, name: &str, keys: &Keys) -> Result<(), Fault> {
    let bond = bond(draft, switch)?;
    if bond.members.iter().any(|member| member.name() == name) {
        return Err(Refused::new("it is there already", "set its keys, or delete it before").into());
    }
    bond.members.push(read_member(name, keys)?);
    Ok(())
}

/// Changes a bond's own keys; `merged` puts new ones over old ones.
pub(super) fn set(
    draft: &mut Draft,
    switch: &str,
    keys: &Keys,
    merged: impl FnOnce(Keys) -> Keys,
) -> Result<(), Fault> {
    let old = bond(draft, switch)?;
    let mut merged = merged(write::bond_options(old));
    merged.remove(ACTIVE);
    *old = Bond { members: std::mem::take(&mut old.members), ..thing::bond(&merged).map_err(Fault::Keys)? };
    let Some(active) = keys.get(ACTIVE) else { return Ok(()) };
    let mode = old.settings.mode;
    let refuse = |message: String, remedy: String| Fault::Refused(Refused { key: ACTIVE, message, remedy });
    if mode != Mode::ActiveBackup {
        return Err(refuse(
            format!("mode \"{}\" has no active member", mode.name()),
            "take a member out by admin=down, or write mode = \"active-backup\"".to_owned(),
        ));
    }
    let Some(active) = active.as_str() else {
        return Err(refuse(
            "this is no name of a member".to_owned(),
            format!("its members are {}", names(old).join(", ")),
        ));
    };
    let member = member(old, active).map_err(|refused| Refused { key: ACTIVE, ..refused })?;
    if member.is_down {
        return Err(refuse(format!("member \"{active}\" is down by hand"), "set its admin=up before".to_owned()));
    }
    draft.active.push((switch.to_owned(), active.to_owned()));
    Ok(())
}

/// Changes a member.
pub(super) fn set_member(
    draft: &mut Draft,
    switch: &str,
    name: &str,
    merged: impl FnOnce(Keys) -> Keys,
) -> Result<(), Fault> {
    let old = member(bond(draft, switch)?, name)?;
    *old = read_member(name, &merged(write::bond_member(old)))?;
    Ok(())
}

/// Takes a member away.
pub(super) fn delete(draft: &mut Draft, switch: &str, name: &str) -> Result<(), Refused> {
    let bond = bond(draft, switch)?;
    member(bond, name)?;
    if bond.members.len() == 1 {
        return Err(Refused::new("it is the bond's last member", "delete the uplink, or add another member before"));
    }
    bond.members.retain(|member| member.name() != name);
    Ok(())
}

fn bond<'a>(draft: &'a mut Draft, switch: &str) -> Result<&'a mut Bond, Refused> {
    let index = draft.switches().place(switch)?;
    let uplink = draft.config().switches[index].uplink.as_mut();
    uplink.and_then(|uplink| uplink.bond.as_mut()).ok_or_else(|| missing(Kind::Bond, "", None))
}

fn names(bond: &Bond) -> Vec<String> {
    bond.members.iter().map(BondMember::name).collect()
}

fn member<'a>(bond: &'a mut Bond, name: &str) -> Result<&'a mut BondMember, Refused> {
    let names = names(bond);
    let place = names.iter().position(|one| one == name);
    let near = || nearest(name, names.iter().map(String::as_str));
    place.map(|place| &mut bond.members[place]).ok_or_else(|| missing(Kind::BondMember, name, near()))
}

fn read_member(name: &str, keys: &Keys) -> Result<BondMember, Fault> {
    let member = thing::bond_member(keys).map_err(Fault::Keys)?;
    if member.name() == name {
        return Ok(member);
    }
    let (message, remedy) = match member.device.locator.as_ref().map(ToString::to_string) {
        Some(port) => {
            (format!("the member at {port} is called \"{}\"", member.name()), "a member is called as its device is")
        }
        None => ("it has no port".to_owned(), "write such as port=packet://eth0"),
    };
    Err(Fault::Refused(Refused { key: "port", message, remedy: remedy.to_owned() }))
}
