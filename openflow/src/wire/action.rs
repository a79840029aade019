//! Actions, instructions and buckets (OpenFlow 1.3.5, sections 7.2.4, 7.2.5, 7.3.4.2; Open
//! vSwitch, ovs-actions(7)).

use super::bytes::{Bad, Bytes, pad, put16, put32, set_length};
use super::field::{Field, Kind};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

/// Ports that stand for something else (section 7.2.1).
pub mod port {
    /// Back where the frame came from.
    pub const IN_PORT: u32 = 0xffff_fff8;
    /// Through the switch's tables, as if it had just come.
    pub const TABLE: u32 = 0xffff_fff9;
    /// As a learning switch forwards.
    pub const NORMAL: u32 = 0xffff_fffa;
    /// To the controller.
    pub const CONTROLLER: u32 = 0xffff_fffd;
    /// Any.
    pub const ANY: u32 = 0xffff_ffff;
}

/// A frame whole, in a packet-in.
pub const WHOLE: u16 = 0xffff;
/// Actions of one list, and buckets of one group, that are kept at most.
const MOST: usize = 512;
const HEADER: usize = 4;
const BUCKET_HEADER: usize = 16;

const OUTPUT: u16 = 0;
const GROUP: u16 = 22;
const SET_NW_TTL: u16 = 23;
const SET_FIELD: u16 = 25;
const EXPERIMENTER: u16 = 0xffff;
/// Open vSwitch's number as an experimenter, and its actions.
const NICIRA: u32 = 0x2320;
const MOVE: u16 = 6;
const FIN_TIMEOUT: u16 = 19;
const CT: u16 = 35;
const NAT: u16 = 36;

const COMMIT: u16 = 1;
const NAT_DST: u16 = 1 << 1;
const RANGE_IPV4: u16 = 1;
const RANGE_IPV6: u16 = 1 << 2;
const RANGE_PORT: u16 = 1 << 4;
/// No table of `ct`.
const NO_TABLE: u8 = 0xff;

const GOTO: u16 = 1;
const APPLY: u16 = 4;

/// What is done with a frame.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub enum Action {
    /// Send it; to the controller, so many bytes of it.
    Output(u32, u16),
    /// Give it to a group.
    Group(u32),
    /// Set a field.
    Set(Field),
    /// Set the time to live, or the hop limit.
    SetTtl(u8),
    /// Copy a field to another of the same length.
    Move(Kind, Kind),
    /// Behind a FIN or RST the flow's idle timeout becomes so many seconds.
    FinTimeout(u16),
    /// Connection tracking: find the connection, remember it where `commits`, and go on in a table.
    Ct {
        /// Whether a new connection is remembered.
        commits: bool,
        /// Connections of different zones do not know of each other.
        zone: u16,
        /// Where it goes on.
        table: Option<u8>,
        /// Address translation.
        nat: Option<Nat>,
    },
    /// Something else, which is not written again.
    Unknown(u16),
}

/// Address translation by connection tracking.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Nat {
    /// As it was remembered.
    Known,
    /// The destination becomes this.
    To(IpAddr, u16),
}

impl Action {
    fn write(&self, out: &mut Vec<u8>) {
        let start = out.len();
        match self {
            Action::Output(to, bytes) => {
                put16(out, OUTPUT);
                put16(out, 0);
                put32(out, *to);
                put16(out, *bytes);
            }
            Action::Group(id) => {
                put16(out, GROUP);
                put16(out, 0);
                put32(out, *id);
            }
            Action::Set(field) => {
                put16(out, SET_FIELD);
                put16(out, 0);
                Field { mask: None, ..*field }.write(out);
            }
            Action::SetTtl(hops) => {
                put16(out, SET_NW_TTL);
                put16(out, 0);
                out.push(*hops);
            }
            Action::Move(from, to) => {
                nicira(out, MOVE);
                put16(out, from.bits());
                put32(out, 0);
                put32(out, from.header());
                put32(out, to.header());
            }
            Action::FinTimeout(idle_s) => {
                nicira(out, FIN_TIMEOUT);
                put16(out, *idle_s);
            }
            Action::Ct { commits, zone, table, nat } => {
                nicira(out, CT);
                put16(out, if *commits { COMMIT } else { 0 });
                put32(out, 0);
                put16(out, *zone);
                out.push(table.unwrap_or(NO_TABLE));
                out.extend([0; 5]);
                if let Some(nat) = nat {
                    nat.write(out);
                }
            }
            Action::Unknown(_) => return,
        }
        pad(out, start);
        set_length(out, start, start + 2);
    }

    fn read(from: &mut Bytes<'_>) -> Result<Action, Bad> {
        let mut part = from.part(2, HEADER, "an action")?;
        let kind = part.u16()?;
        part.skip(2)?;
        match kind {
            OUTPUT => Ok(Action::Output(part.u32()?, part.u16()?)),
            GROUP => Ok(Action::Group(part.u32()?)),
            SET_FIELD => Ok(Field::read(&mut part)?.map_or(Action::Unknown(kind), Action::Set)),
            SET_NW_TTL => Ok(Action::SetTtl(part.u8()?)),
            EXPERIMENTER if part.u32()? == NICIRA => Action::read_nicira(&mut part),
            _ => Ok(Action::Unknown(kind)),
        }
    }

    fn read_nicira(part: &mut Bytes<'_>) -> Result<Action, Bad> {
        match part.u16()? {
            MOVE => {
                let (bits, offsets, source, target) = (part.u16()?, part.u32()?, part.u32()?, part.u32()?);
                let kinds = Kind::of_header(source).zip(Kind::of_header(target));
                let whole = |(from, to): &(Kind, Kind)| offsets == 0 && from.bits() == bits && to.bits() == bits;
                Ok(kinds.filter(whole).map_or(Action::Unknown(EXPERIMENTER), |(from, to)| Action::Move(from, to)))
            }
            FIN_TIMEOUT => Ok(Action::FinTimeout(part.u16()?)),
            CT => {
                let (flags, source, zone, table) = (part.u16()?, part.u32()?, part.u16()?, part.u8()?);
                part.skip(5)?;
                let mut nat = None;
                let mut is_known = source == 0 && flags & !COMMIT == 0;
                while !part.is_empty() {
                    match Nat::read(part)? {
                        Some(one) if nat.is_none() => nat = Some(one),
                        _ => is_known = false,
                    }
                }
                if !is_known {
                    return Ok(Action::Unknown(EXPERIMENTER));
                }
                let table = (table != NO_TABLE).then_some(table);
                Ok(Action::Ct { commits: flags & COMMIT != 0, zone, table, nat })
            }
            _ => Ok(Action::Unknown(EXPERIMENTER)),
        }
    }

    pub(super) fn write_all(all: &[Action], out: &mut Vec<u8>) {
        all.iter().for_each(|action| action.write(out));
    }

    pub(super) fn read_all(mut from: Bytes<'_>) -> Result<Vec<Action>, Bad> {
        let mut all = Vec::new();
        while !from.is_empty() {
            let action = Action::read(&mut from)?;
            if all.len() == MOST {
                return Err(Bad::new("a list", "has more than 512 actions"));
            }
            all.push(action);
        }
        Ok(all)
    }
}

impl Nat {
    fn write(self, out: &mut Vec<u8>) {
        let start = out.len();
        nicira(out, NAT);
        out.extend([0; 2]);
        match self {
            Nat::Known => put32(out, 0),
            Nat::To(ip, port) => {
                put16(out, NAT_DST);
                put16(out, RANGE_PORT | if ip.is_ipv4() { RANGE_IPV4 } else { RANGE_IPV6 });
                match ip {
                    IpAddr::V4(ip) => out.extend(ip.octets()),
                    IpAddr::V6(ip) => out.extend(ip.octets()),
                }
                put16(out, port);
            }
        }
        pad(out, start);
        set_length(out, start, start + 2);
    }

    /// The next action within `ct`; `None` where it is none that is written here.
    fn read(from: &mut Bytes<'_>) -> Result<Option<Nat>, Bad> {
        let mut part = from.part(2, HEADER, "an action")?;
        let kind = part.u16()?;
        part.skip(2)?;
        if kind != EXPERIMENTER || part.u32()? != NICIRA || part.u16()? != NAT {
            return Ok(None);
        }
        part.skip(2)?;
        Ok(match (part.u16()?, part.u16()?) {
            (0, 0) => Some(Nat::Known),
            (NAT_DST, range) if range == RANGE_IPV4 | RANGE_PORT => {
                Some(Nat::To(Ipv4Addr::from_bits(part.u32()?).into(), part.u16()?))
            }
            (NAT_DST, range) if range == RANGE_IPV6 | RANGE_PORT => {
                Some(Nat::To(Ipv6Addr::from_bits(part.u128()?).into(), part.u16()?))
            }
            _ => None,
        })
    }
}

/// The header of an action of Open vSwitch's: 10 bytes.
fn nicira(out: &mut Vec<u8>, subtype: u16) {
    put16(out, EXPERIMENTER);
    put16(out, 0);
    put32(out, NICIRA);
    put16(out, subtype);
}

/// What a flow does with its frames.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub enum Instruction {
    /// Do this.
    Apply(Vec<Action>),
    /// Go on in a table.
    Goto(u8),
    /// Something else, which is not written again.
    Unknown(u16),
}

impl Instruction {
    fn write(&self, out: &mut Vec<u8>) {
        let start = out.len();
        match self {
            Instruction::Apply(actions) => {
                put16(out, APPLY);
                out.extend([0; 6]);
                Action::write_all(actions, out);
            }
            Instruction::Goto(table) => {
                put16(out, GOTO);
                out.extend([0, 0, *table, 0, 0, 0]);
            }
            Instruction::Unknown(_) => return,
        }
        set_length(out, start, start + 2);
    }

    pub(super) fn write_all(all: &[Instruction], out: &mut Vec<u8>) {
        all.iter().for_each(|instruction| instruction.write(out));
    }

    pub(super) fn read_all(mut from: Bytes<'_>) -> Result<Vec<Instruction>, Bad> {
        let mut all = Vec::new();
        while !from.is_empty() {
            let mut part = from.part(2, HEADER, "an instruction")?;
            let kind = part.u16()?;
            part.skip(2)?;
            let one = match kind {
                APPLY => {
                    part.skip(4)?;
                    Instruction::Apply(Action::read_all(part)?)
                }
                GOTO => Instruction::Goto(part.u8()?),
                _ => Instruction::Unknown(kind),
            };
            if all.len() == MOST {
                return Err(Bad::new("a flow", "has more than 512 instructions"));
            }
            all.push(one);
        }
        Ok(all)
    }
}

/// One of the places of a group.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct Bucket {
    /// Its part of the frames.
    pub weight: u16,
    /// What is done with them.
    pub actions: Vec<Action>,
}

impl Bucket {
    pub(super) fn write_all(all: &[Bucket], out: &mut Vec<u8>) {
        for bucket in all {
            let start = out.len();
            put16(out, 0);
            put16(out, bucket.weight);
            // Port and group by which it would be watched.
            put32(out, port::ANY);
            put32(out, port::ANY);
            put32(out, 0);
            Action::write_all(&bucket.actions, out);
            set_length(out, start, start);
        }
    }

    pub(super) fn read_all(mut from: Bytes<'_>) -> Result<Vec<Bucket>, Bad> {
        let mut all = Vec::new();
        while !from.is_empty() {
            let mut part = from.part(0, BUCKET_HEADER, "a bucket")?;
            part.skip(2)?;
            let weight = part.u16()?;
            part.skip(12)?;
            if all.len() == MOST {
                return Err(Bad::new("a group", "has more than 512 buckets"));
            }
            all.push(Bucket { weight, actions: Action::read_all(part)? });
        }
        Ok(all)
    }
}
