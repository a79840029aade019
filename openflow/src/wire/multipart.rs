//! Questions whose answers may have several parts (OpenFlow 1.3.5, section 7.3.5).

use super::action::{Bucket, Instruction, port};
use super::bytes::{Bad, Bytes, put16, put32, put64, set_length};
use super::field::Match;
use super::message::SELECT;

const DESCRIPTION: u16 = 0;
const FLOWS: u16 = 1;
const GROUPS: u16 = 7;
/// More parts follow.
const MORE: u16 = 1;
const FLOW_HEADER: usize = 48;
const GROUP_HEADER: usize = 8;
/// Bytes of each text of a description, and of the serial number.
const TEXT: usize = 256;
const SERIAL: usize = 32;

/// A question.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Request {
    /// Who made the switch?
    Description,
    /// Which flows of all tables have such a cookie, in the bits of a mask?
    Flows(u64, u64),
    /// Which groups are there?
    Groups,
    /// Something else.
    Unknown(u16),
}

/// A part of an answer.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Multipart {
    /// Who made the switch.
    Description(Description),
    /// Flows.
    Flows(Vec<FlowStats>),
    /// Groups.
    Groups(Vec<GroupDescription>),
    /// Something else.
    Unknown(u16),
}

/// Who made the switch.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Description {
    /// Its maker.
    pub manufacturer: String,
    /// Its hardware.
    pub hardware: String,
    /// Its software.
    pub software: String,
    /// What its operator calls it.
    pub datapath: String,
}

/// A flow, as the switch has it.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct FlowStats {
    /// Its table.
    pub table: u8,
    /// Its priority.
    pub priority: u16,
    /// Its cookie.
    pub cookie: u64,
    /// Frames that it has had.
    pub packets: u64,
    /// Bytes of them.
    pub bytes: u64,
    /// Frames that it is for.
    pub matches: Match,
    /// What it does with them.
    pub instructions: Vec<Instruction>,
}

/// A group, as the switch has it.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct GroupDescription {
    /// Its number.
    pub id: u32,
    /// Its places.
    pub buckets: Vec<Bucket>,
}

impl Request {
    pub(super) fn write(&self, out: &mut Vec<u8>) {
        let kind = match self {
            Request::Description => DESCRIPTION,
            Request::Flows(..) => FLOWS,
            Request::Groups => GROUPS,
            Request::Unknown(kind) => *kind,
        };
        put16(out, kind);
        out.extend([0; 6]);
        if let Request::Flows(cookie, mask) = self {
            // All tables, ports and groups.
            out.extend([0xff, 0, 0, 0]);
            put32(out, port::ANY);
            put32(out, port::ANY);
            put32(out, 0);
            put64(out, *cookie);
            put64(out, *mask);
            Match::default().write(out);
        }
    }

    pub(super) fn read(mut from: Bytes<'_>) -> Result<Request, Bad> {
        let kind = from.u16()?;
        from.skip(6)?;
        Ok(match kind {
            DESCRIPTION => Request::Description,
            FLOWS => {
                from.skip(16)?;
                Request::Flows(from.u64()?, from.u64()?)
            }
            GROUPS => Request::Groups,
            other => Request::Unknown(other),
        })
    }
}

impl Multipart {
    pub(super) fn write(&self, has_more: bool, out: &mut Vec<u8>) {
        let kind = match self {
            Multipart::Description(_) => DESCRIPTION,
            Multipart::Flows(_) => FLOWS,
            Multipart::Groups(_) => GROUPS,
            Multipart::Unknown(kind) => *kind,
        };
        put16(out, kind);
        put16(out, if has_more { MORE } else { 0 });
        put32(out, 0);
        match self {
            Multipart::Description(description) => description.write(out),
            Multipart::Flows(flows) => flows.iter().for_each(|flow| flow.write(out)),
            Multipart::Groups(groups) => {
                for group in groups {
                    let start = out.len();
                    out.extend([0, 0, SELECT, 0]);
                    put32(out, group.id);
                    Bucket::write_all(&group.buckets, out);
                    set_length(out, start, start);
                }
            }
            Multipart::Unknown(_) => {}
        }
    }

    pub(super) fn read(mut from: Bytes<'_>) -> Result<(Multipart, bool), Bad> {
        let (kind, flags) = (from.u16()?, from.u16()?);
        from.skip(4)?;
        let part = match kind {
            DESCRIPTION => Multipart::Description(Description::read(from)?),
            FLOWS => {
                let mut flows = Vec::new();
                while !from.is_empty() {
                    flows.push(FlowStats::read(&mut from)?);
                }
                Multipart::Flows(flows)
            }
            GROUPS => {
                let mut groups = Vec::new();
                while !from.is_empty() {
                    let mut part = from.part(0, GROUP_HEADER, "a group")?;
                    part.skip(4)?;
                    groups.push(GroupDescription { id: part.u32()?, buckets: Bucket::read_all(part)? });
                }
                Multipart::Groups(groups)
            }
            other => Multipart::Unknown(other),
        };
        Ok((part, flags & MORE != 0))
    }
}

impl Description {
    fn write(&self, out: &mut Vec<u8>) {
        let texts = [&self.manufacturer, &self.hardware, &self.software, "", &self.datapath];
        for (text, room) in texts.into_iter().zip([TEXT, TEXT, TEXT, SERIAL, TEXT]) {
            let end = out.len() + room;
            out.extend(text.bytes().take(room - 1));
            out.resize(end, 0);
        }
    }

    fn read(mut from: Bytes<'_>) -> Result<Description, Bad> {
        let mut text = |room: usize| from.take(room).map(words);
        let (manufacturer, hardware, software) = (text(TEXT)?, text(TEXT)?, text(TEXT)?);
        text(SERIAL)?;
        Ok(Description { manufacturer, hardware, software, datapath: text(TEXT)? })
    }
}

/// A text up to its final zero, in what can be printed.
fn words(bytes: &[u8]) -> String {
    let end = bytes.iter().position(|&byte| byte == 0).unwrap_or(bytes.len());
    bytes[..end].iter().map(|&byte| if (b' '..=b'~').contains(&byte) { char::from(byte) } else { '?' }).collect()
}

impl FlowStats {
    fn write(&self, out: &mut Vec<u8>) {
        let start = out.len();
        out.extend([0, 0, self.table, 0]);
        // Duration.
        put64(out, 0);
        put16(out, self.priority);
        // Timeouts and flags.
        out.extend([0; 10]);
        put64(out, self.cookie);
        put64(out, self.packets);
        put64(out, self.bytes);
        self.matches.write(out);
        Instruction::write_all(&self.instructions, out);
        set_length(out, start, start);
    }

    fn read(from: &mut Bytes<'_>) -> Result<FlowStats, Bad> {
        let mut part = from.part(0, FLOW_HEADER, "a flow")?;
        part.skip(2)?;
        let table = part.u8()?;
        part.skip(9)?;
        let priority = part.u16()?;
        part.skip(10)?;
        let (cookie, packets, bytes) = (part.u64()?, part.u64()?, part.u64()?);
        let matches = Match::read(&mut part)?;
        let instructions = Instruction::read_all(part)?;
        Ok(FlowStats { table, priority, cookie, packets, bytes, matches, instructions })
    }
}
