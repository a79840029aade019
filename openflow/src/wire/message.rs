//! Messages.

use super::action::{Action, Bucket, Instruction, port};
use super::bytes::{Bad, Bytes, put16, put32, put64, set_length};
use super::field::Match;
use super::multipart::{Multipart, Request};

/// OpenFlow 1.3.
pub const VERSION: u8 = 4;
/// Bytes of the header of every message.
pub const HEADER: usize = 8;
/// Bytes of an error's message that are kept.
const MOST_ERROR: usize = 64;
/// No buffer: frames come whole.
const NO_BUFFER: u32 = 0xffff_ffff;
/// The element of a hello that has a bitmap of versions.
const VERSION_BITMAP: u16 = 1;

/// Types of messages (section 7.1).
mod kind {
    pub const HELLO: u8 = 0;
    pub const ERROR: u8 = 1;
    pub const ECHO_REQUEST: u8 = 2;
    pub const ECHO_REPLY: u8 = 3;
    pub const FEATURES_REQUEST: u8 = 5;
    pub const FEATURES_REPLY: u8 = 6;
    pub const SET_CONFIG: u8 = 9;
    pub const PACKET_IN: u8 = 10;
    pub const FLOW_REMOVED: u8 = 11;
    pub const PACKET_OUT: u8 = 13;
    pub const FLOW_MOD: u8 = 14;
    pub const GROUP_MOD: u8 = 15;
    pub const MULTIPART_REQUEST: u8 = 18;
    pub const MULTIPART_REPLY: u8 = 19;
    pub const BARRIER_REQUEST: u8 = 20;
    pub const BARRIER_REPLY: u8 = 21;
    pub const ROLE_REQUEST: u8 = 24;
    pub const ROLE_REPLY: u8 = 25;
}

/// Flags of a flow.
pub mod flag {
    /// The controller is told when the flow goes.
    pub const SEND_REMOVED: u16 = 1;
}

/// A message, without its transaction id.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Message {
    /// The first one of each side, with the versions that it knows as a bitmap.
    Hello(u32),
    /// What was refused: type, code, and the beginning of what it was about, or a text.
    Error(u16, u16, Vec<u8>),
    /// Are you there?
    EchoRequest(Vec<u8>),
    /// Yes.
    EchoReply(Vec<u8>),
    /// What are you?
    FeaturesRequest,
    /// This.
    FeaturesReply(Features),
    /// How many bytes of frames that no flow matches come to the controller.
    SetConfig(u16),
    /// A frame for the controller.
    PacketIn(PacketIn),
    /// A flow is gone.
    FlowRemoved(FlowRemoved),
    /// A frame from the controller.
    PacketOut(PacketOut),
    /// A change of flows.
    FlowMod(FlowMod),
    /// A change of a group.
    GroupMod(GroupMod),
    /// A question with an answer of several parts.
    MultipartRequest(Request),
    /// A part of the answer, and whether more follow.
    MultipartReply(Multipart, bool),
    /// Do what came before first, then say so.
    BarrierRequest,
    /// It is done.
    BarrierReply,
    /// Be it so with this controller's rights, in this generation.
    RoleRequest(Role, u64),
    /// They are so.
    RoleReply(Role, u64),
    /// Another type, which concerns nobody here.
    Unknown(u8),
}

/// What a switch is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Features {
    /// Its number.
    pub datapath: u64,
    /// How many tables it has.
    pub tables: u8,
    /// 0, unless this is an auxiliary connection.
    pub auxiliary: u8,
}

/// A frame for the controller.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct PacketIn {
    /// Cookie of the flow that sent it.
    pub cookie: u64,
    /// Table of that flow.
    pub table: u8,
    /// What else is known of it.
    pub about: Match,
    /// The frame.
    pub data: Vec<u8>,
}

/// A frame from the controller.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct PacketOut {
    /// The port that it counts as having come by.
    pub in_port: u32,
    /// What is done with it.
    pub actions: Vec<Action>,
    /// The frame.
    pub data: Vec<u8>,
}

/// A flow is gone.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct FlowRemoved {
    /// Its cookie.
    pub cookie: u64,
    /// Its priority.
    pub priority: u16,
    /// 0 idle, 1 hard timeout, 2 deleted, 3 its group was.
    pub reason: u8,
    /// Its table.
    pub table: u8,
    /// Frames that it had.
    pub packets: u64,
    /// Bytes of them.
    pub bytes: u64,
    /// What it matched.
    pub matches: Match,
}

/// What becomes of flows.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum FlowCommand {
    /// A new one, or another in its place.
    Add,
    /// All that are within the match, the cookie and its mask go.
    Delete,
}

/// A change of flows.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct FlowMod {
    /// What becomes of them.
    pub command: FlowCommand,
    /// Whose and which it is; of deletion, which are meant.
    pub cookie: u64,
    /// Of deletion: the bits of the cookie that count.
    pub cookie_mask: u64,
    /// Which table; 255 stands for all where flows are deleted.
    pub table: u8,
    /// Seconds without a frame after which it goes; 0 for never.
    pub idle_timeout_s: u16,
    /// Of several that match a frame, the one with the most.
    pub priority: u16,
    /// See [`flag`].
    pub flags: u16,
    /// Frames that it is for.
    pub matches: Match,
    /// What it does with them.
    pub instructions: Vec<Instruction>,
}

/// What becomes of a group.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum GroupCommand {
    /// A new one.
    Add,
    /// It changes.
    Modify,
    /// It goes.
    Delete,
}

/// A change of a group that selects a bucket for each flow.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct GroupMod {
    /// What becomes of it.
    pub command: GroupCommand,
    /// Its number.
    pub id: u32,
    /// Its places.
    pub buckets: Vec<Bucket>,
}

/// Type of a group that selects (section 7.3.4.2).
pub(super) const SELECT: u8 = 1;

/// A controller's rights (section 6.3.6).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Role {
    /// As they are.
    NoChange,
    /// All, like others'.
    Equal,
    /// All, and the only one.
    Master,
    /// To look only.
    Slave,
}

impl Role {
    const ALL: [Role; 4] = [Role::NoChange, Role::Equal, Role::Master, Role::Slave];

    fn read(number: u32) -> Result<Role, Bad> {
        let role = usize::try_from(number).ok().and_then(|at| Role::ALL.get(at).copied());
        role.ok_or(Bad::new("a role", "is none of the four"))
    }
}

impl Message {
    /// Appends the message; nothing where it would be longer than a message can be, which a frame
    /// of nearly 64 KiB makes it.
    pub fn write(&self, xid: u32, out: &mut Vec<u8>) {
        let start = out.len();
        out.extend([VERSION, self.kind(), 0, 0]);
        put32(out, xid);
        self.write_body(out);
        if out.len() - start > usize::from(u16::MAX) {
            return out.truncate(start);
        }
        set_length(out, start, start + 2);
    }

    fn kind(&self) -> u8 {
        match self {
            Message::Hello(_) => kind::HELLO,
            Message::Error(..) => kind::ERROR,
            Message::EchoRequest(_) => kind::ECHO_REQUEST,
            Message::EchoReply(_) => kind::ECHO_REPLY,
            Message::FeaturesRequest => kind::FEATURES_REQUEST,
            Message::FeaturesReply(_) => kind::FEATURES_REPLY,
            Message::SetConfig(_) => kind::SET_CONFIG,
            Message::PacketIn(_) => kind::PACKET_IN,
            Message::FlowRemoved(_) => kind::FLOW_REMOVED,
            Message::PacketOut(_) => kind::PACKET_OUT,
            Message::FlowMod(_) => kind::FLOW_MOD,
            Message::GroupMod(_) => kind::GROUP_MOD,
            Message::MultipartRequest(_) => kind::MULTIPART_REQUEST,
            Message::MultipartReply(..) => kind::MULTIPART_REPLY,
            Message::BarrierRequest => kind::BARRIER_REQUEST,
            Message::BarrierReply => kind::BARRIER_REPLY,
            Message::RoleRequest(..) => kind::ROLE_REQUEST,
            Message::RoleReply(..) => kind::ROLE_REPLY,
            Message::Unknown(kind) => *kind,
        }
    }

    fn write_body(&self, out: &mut Vec<u8>) {
        match self {
            Message::Hello(versions) => {
                put16(out, VERSION_BITMAP);
                put16(out, 8);
                put32(out, *versions);
            }
            Message::Error(kind, code, data) => {
                put16(out, *kind);
                put16(out, *code);
                out.extend_from_slice(data);
            }
            Message::EchoRequest(data) | Message::EchoReply(data) => out.extend_from_slice(data),
            Message::FeaturesReply(features) => features.write(out),
            Message::SetConfig(bytes) => {
                put16(out, 0);
                put16(out, *bytes);
            }
            Message::PacketIn(packet) => packet.write(out),
            Message::FlowRemoved(removed) => removed.write(out),
            Message::PacketOut(packet) => packet.write(out),
            Message::FlowMod(change) => change.write(out),
            Message::GroupMod(change) => change.write(out),
            Message::MultipartRequest(request) => request.write(out),
            Message::MultipartReply(part, has_more) => part.write(*has_more, out),
            Message::RoleRequest(role, generation) | Message::RoleReply(role, generation) => {
                put32(out, *role as u32);
                put32(out, 0);
                put64(out, *generation);
            }
            Message::FeaturesRequest | Message::BarrierRequest | Message::BarrierReply | Message::Unknown(_) => {}
        }
    }

    /// Reads a message that [`super::Stream`] has cut off, and its transaction id.
    ///
    /// # Errors
    /// What in it contradicts itself. The stream goes on behind it.
    pub fn read(bytes: &[u8]) -> Result<(u32, Message), Bad> {
        let mut from = Bytes::new(bytes, "a message");
        let (version, kind) = (from.u8()?, from.u8()?);
        from.skip(2)?;
        let xid = from.u32()?;
        let message = match kind {
            kind::HELLO => Message::Hello(versions(version, from)),
            kind::ERROR => {
                let (kind, code) = (from.u16()?, from.u16()?);
                Message::Error(kind, code, from.rest()[..from.rest().len().min(MOST_ERROR)].to_vec())
            }
            kind::ECHO_REQUEST => Message::EchoRequest(from.rest().to_vec()),
            kind::ECHO_REPLY => Message::EchoReply(from.rest().to_vec()),
            kind::FEATURES_REQUEST => Message::FeaturesRequest,
            kind::FEATURES_REPLY => Message::FeaturesReply(Features::read(from)?),
            kind::SET_CONFIG => {
                from.skip(2)?;
                Message::SetConfig(from.u16()?)
            }
            kind::PACKET_IN => Message::PacketIn(PacketIn::read(from)?),
            kind::FLOW_REMOVED => Message::FlowRemoved(FlowRemoved::read(from)?),
            kind::PACKET_OUT => Message::PacketOut(PacketOut::read(from)?),
            kind::FLOW_MOD => Message::FlowMod(FlowMod::read(from)?),
            kind::GROUP_MOD => Message::GroupMod(GroupMod::read(from)?),
            kind::MULTIPART_REQUEST => Message::MultipartRequest(Request::read(from)?),
            kind::MULTIPART_REPLY => {
                let (part, has_more) = Multipart::read(from)?;
                Message::MultipartReply(part, has_more)
            }
            kind::BARRIER_REQUEST => Message::BarrierRequest,
            kind::BARRIER_REPLY => Message::BarrierReply,
            kind::ROLE_REQUEST | kind::ROLE_REPLY => {
                let role = Role::read(from.u32()?)?;
                from.skip(4)?;
                let generation = from.u64()?;
                if kind == kind::ROLE_REQUEST {
                    Message::RoleRequest(role, generation)
                } else {
                    Message::RoleReply(role, generation)
                }
            }
            other => Message::Unknown(other),
        };
        Ok((xid, message))
    }
}

/// What versions a hello is good for: its bitmap, else all up to its own (section 6.3.1).
fn versions(version: u8, mut from: Bytes<'_>) -> u32 {
    while let Ok(mut element) = from.part(2, 4, "a hello") {
        let length = element.rest().len();
        let _ = from.skip(length.next_multiple_of(8) - length);
        let kind = element.u16();
        if kind == Ok(VERSION_BITMAP)
            && let Ok(bitmap) = element.skip(2).and_then(|()| element.u32())
        {
            return bitmap;
        }
    }
    u32::MAX.checked_shr(31_u32.saturating_sub(version.into())).unwrap_or(1) & !1
}

impl Features {
    fn write(&self, out: &mut Vec<u8>) {
        put64(out, self.datapath);
        put32(out, 0);
        out.extend([self.tables, self.auxiliary, 0, 0]);
        put64(out, 0);
    }

    fn read(mut from: Bytes<'_>) -> Result<Features, Bad> {
        let datapath = from.u64()?;
        from.skip(4)?;
        Ok(Features { datapath, tables: from.u8()?, auxiliary: from.u8()? })
    }
}

impl PacketIn {
    fn write(&self, out: &mut Vec<u8>) {
        put32(out, NO_BUFFER);
        put16(out, self.data.len() as u16);
        out.extend([1, self.table]);
        put64(out, self.cookie);
        self.about.write(out);
        put16(out, 0);
        out.extend_from_slice(&self.data);
    }

    fn read(mut from: Bytes<'_>) -> Result<PacketIn, Bad> {
        from.skip(7)?;
        let (table, cookie, about) = (from.u8()?, from.u64()?, Match::read(&mut from)?);
        from.skip(2)?;
        Ok(PacketIn { cookie, table, about, data: from.rest().to_vec() })
    }
}

impl PacketOut {
    fn write(&self, out: &mut Vec<u8>) {
        put32(out, NO_BUFFER);
        put32(out, self.in_port);
        let at = out.len();
        out.extend([0; 8]);
        Action::write_all(&self.actions, out);
        set_length(out, at + 8, at);
        out.extend_from_slice(&self.data);
    }

    fn read(mut from: Bytes<'_>) -> Result<PacketOut, Bad> {
        from.skip(4)?;
        let (in_port, length) = (from.u32()?, from.u16()?);
        from.skip(6)?;
        let actions = Action::read_all(Bytes::new(from.take(length.into())?, "a list of actions"))?;
        Ok(PacketOut { in_port, actions, data: from.rest().to_vec() })
    }
}

impl FlowRemoved {
    fn write(&self, out: &mut Vec<u8>) {
        put64(out, self.cookie);
        put16(out, self.priority);
        out.extend([self.reason, self.table]);
        // Duration, timeouts.
        out.extend([0; 12]);
        put64(out, self.packets);
        put64(out, self.bytes);
        self.matches.write(out);
    }

    fn read(mut from: Bytes<'_>) -> Result<FlowRemoved, Bad> {
        let (cookie, priority, reason, table) = (from.u64()?, from.u16()?, from.u8()?, from.u8()?);
        from.skip(12)?;
        let (packets, bytes) = (from.u64()?, from.u64()?);
        Ok(FlowRemoved { cookie, priority, reason, table, packets, bytes, matches: Match::read(&mut from)? })
    }
}

impl FlowMod {
    fn write(&self, out: &mut Vec<u8>) {
        let command = match self.command {
            FlowCommand::Add => 0,
            FlowCommand::Delete => 3,
        };
        put64(out, self.cookie);
        put64(out, self.cookie_mask);
        out.extend([self.table, command]);
        put16(out, self.idle_timeout_s);
        put16(out, 0);
        put16(out, self.priority);
        put32(out, NO_BUFFER);
        put32(out, port::ANY);
        put32(out, port::ANY);
        put16(out, self.flags);
        put16(out, 0);
        self.matches.write(out);
        Instruction::write_all(&self.instructions, out);
    }

    fn read(mut from: Bytes<'_>) -> Result<FlowMod, Bad> {
        let (cookie, cookie_mask, table) = (from.u64()?, from.u64()?, from.u8()?);
        let command = match from.u8()? {
            0 => FlowCommand::Add,
            3 => FlowCommand::Delete,
            _ => return Err(Bad::new("a change of flows", "has a command that is not known here")),
        };
        let idle_timeout_s = from.u16()?;
        from.skip(2)?;
        let priority = from.u16()?;
        from.skip(12)?;
        let flags = from.u16()?;
        from.skip(2)?;
        let matches = Match::read(&mut from)?;
        let instructions = Instruction::read_all(from)?;
        Ok(FlowMod { command, cookie, cookie_mask, table, idle_timeout_s, priority, flags, matches, instructions })
    }
}

impl GroupMod {
    fn write(&self, out: &mut Vec<u8>) {
        put16(
            out,
            match self.command {
                GroupCommand::Add => 0,
                GroupCommand::Modify => 1,
                GroupCommand::Delete => 2,
            },
        );
        out.extend([SELECT, 0]);
        put32(out, self.id);
        Bucket::write_all(&self.buckets, out);
    }

    fn read(mut from: Bytes<'_>) -> Result<GroupMod, Bad> {
        let command = match from.u16()? {
            0 => GroupCommand::Add,
            1 => GroupCommand::Modify,
            2 => GroupCommand::Delete,
            _ => return Err(Bad::new("a change of a group", "has a command that is not known here")),
        };
        from.skip(2)?;
        Ok(GroupMod { command, id: from.u32()?, buckets: Bucket::read_all(from)? })
    }
}
