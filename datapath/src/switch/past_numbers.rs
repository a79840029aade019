//! Past numbers: numbers of a bond at the other end that may still arrive after this end has
//! stopped taking numbers off. That bond may be paused by a clock that does not count it (a paused
//! virtual machine, a host in suspend). When it continues, at any later time, it still numbers. In
//! a tenant's network each number would be a tag.
//!
//! So after a hello of a bond that numbers by tags, what looks like a number is dropped until the
//! link was down. Only then may another system be at its other end. A shim is always a number if
//! the uplink's bond is for bridges. No clock is used.

use super::{Role, Switch};
use crate::bond::number::{self, Encoding};
use crate::ids::{MemberId, PortId};
use crate::program::Uplink;

/// See the module.
#[derive(Debug, Default)]
pub(super) struct PastNumbers {
    /// Ports over which hellos of such a bond arrived, and whose links have not been down since.
    ports: Vec<PortId>,
    /// The uplink's bond is, or was, one over bridges.
    has_shims: bool,
}

impl PastNumbers {
    #[cold]
    fn refuses(&self, bytes: &[u8]) -> bool {
        number::read(bytes).is_some() && if number::is_shim(bytes) { self.has_shims } else { !self.ports.is_empty() }
    }
}

/// What another process knew of past numbers.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct NumbersState {
    /// Members over which hellos of a bond that numbers by tags arrived, and whose links have not
    /// been down since.
    pub members: Vec<MemberId>,
    /// Whether the uplink's bond is, or was, one over bridges.
    pub has_shims: bool,
}

impl Switch {
    /// Whether a frame from the uplink, from which no number was taken off, shows a past one.
    #[inline]
    pub(super) fn is_past_number(&self, bytes: &[u8]) -> bool {
        self.past_numbers.as_ref().is_some_and(|past| past.refuses(bytes))
    }

    /// A hello has arrived over a member: the bond at its other end may number, in the encoding of
    /// its hellos.
    pub(super) fn expect_numbers(&mut self, member: MemberId) {
        let Some(uplink) = &self.program.uplink else { return };
        match self.bond.as_ref().and_then(|bond| bond.encoding_of_peer(member)) {
            Some(Encoding::Tag) => {
                let port = uplink.port_of(member);
                let past = self.past_numbers.get_or_insert_default();
                if !past.ports.contains(&port) {
                    past.ports.push(port);
                }
            }
            Some(Encoding::Shim) => self.forget_numbers(member),
            None => {}
        }
    }

    /// A member's other end does not number by tags: its link is down, for example.
    pub(super) fn forget_numbers(&mut self, member: MemberId) {
        let port = self.program.uplink.as_ref().map(|uplink| uplink.port_of(member));
        self.keep_past(|past| past.ports.retain(|&other| Some(other) != port));
    }

    /// The uplink has changed.
    pub(super) fn follow_past_numbers(&mut self) {
        let settings = self.program.uplink.as_ref().and_then(|uplink| uplink.bond);
        if settings.is_some_and(|settings| settings.may_number() && settings.encoding == Encoding::Shim) {
            self.past_numbers.get_or_insert_default().has_shims = true;
        }
        let ports: Vec<PortId> = self.program.uplink.iter().flat_map(Uplink::ports).collect();
        self.keep_past(|past| {
            past.ports.retain(|port| ports.contains(port));
            past.has_shims &= !ports.is_empty();
        });
    }

    /// Changes what is past. If nothing is left, frames are not checked.
    fn keep_past(&mut self, change: impl FnOnce(&mut PastNumbers)) {
        if let Some(past) = &mut self.past_numbers {
            change(past);
        }
        self.past_numbers = self.past_numbers.take().filter(|past| past.has_shims || !past.ports.is_empty());
    }

    pub(super) fn export_numbers(&self) -> NumbersState {
        let Some(past) = &self.past_numbers else { return NumbersState::default() };
        let member = |&port: &PortId| if let Role::Uplink(member) = self.role(port) { Some(member) } else { None };
        NumbersState { members: past.ports.iter().filter_map(member).collect(), has_shims: past.has_shims }
    }

    pub(super) fn import_numbers(&mut self, state: &NumbersState) {
        let Some(uplink) = &self.program.uplink else { return };
        let members = state.members.iter().filter(|member| usize::from(member.0) < uplink.members.len());
        let ports: Vec<PortId> = members.map(|&member| uplink.port_of(member)).collect();
        let past = self.past_numbers.get_or_insert_default();
        past.has_shims |= state.has_shims;
        past.ports.extend(ports);
        self.keep_past(|past| {
            past.ports.sort_unstable();
            past.ports.dedup();
        });
    }
}
