//! What a bond would do with a frame that is to leave, without doing it.

use super::number::Number;
use super::{Bond, MemberId, Mode, is_membership};
use crate::units::Instant;
use crate::verdict::Reason;
use crate::wire::Layout;

/// How a frame leaves.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Way {
    /// Over this member.
    Over(MemberId),
    /// With a number, over this member, which would finish sending it soonest. Of a frame that is
    /// cut, the first part.
    Numbered(MemberId, u16),
    /// Over each of this many members, with a number if frames have numbers.
    Copies(u32, Option<u16>),
}

impl Bond {
    /// How a frame of `wire_bytes` would leave if it was sent now.
    ///
    /// # Errors
    /// As [`Bond::send`].
    pub fn explain_send(&self, now: Instant, bytes: &[u8], layout: &Layout, wire_bytes: u32) -> Result<Way, Reason> {
        if self.senders.count == 0 {
            return Err(Reason::PortDown);
        }
        let number = self.peer.as_ref().filter(|_| self.is_numbering()).map(|peer| Number::new(peer.next, false).value);
        let over = |index: Option<usize>| index.map(|index| MemberId(index as u8)).ok_or(Reason::MemberFull);
        if self.settings.mode == Mode::Broadcast {
            return Ok(Way::Copies(self.senders.count.into(), number));
        }
        let is_membership = is_membership(bytes, layout);
        if let Some(number) = number {
            let index = match is_membership {
                true => self.active_sender(),
                false => self.find_soonest(now, wire_bytes).map(|(_, index)| index),
            };
            return over(index).map(|member| Way::Numbered(member, number));
        }
        let index = match self.settings.mode {
            Mode::BalanceRr if is_membership => self.active_sender(),
            Mode::BalanceRr => {
                let mut turn = self.turn;
                self.senders.by_hash(turn.next(self.settings.packets_per_member))
            }
            Mode::BalanceXor | Mode::Lacp => self.senders.by_hash(self.settings.hash.hash(bytes, layout)),
            Mode::ActiveBackup | Mode::Broadcast => self.active_sender(),
        };
        over(index).map(Way::Over)
    }
}
