//! Counters of virtual congestion control.

use super::connection::{Kind, Treatment, Why};

/// What is counted for an endpoint.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Counters {
    /// Connections that opened, by how they are treated: translated, native, plain. One that a
    /// peer began opens when the peer acknowledges the guest's answer (RFC 9293, section 3.10.7.4).
    pub opened: [u64; 3],
    /// Connections, or frames of none, that were left alone, by [`Why`].
    pub untouched: [u64; Why::ALL.len()],
    /// Bytes that peers acknowledged to translated guests.
    pub acked_bytes: u64,
    /// Of these, bytes whose mark was reported.
    pub marked_bytes: u64,
    /// Marked segments that arrived, and were hidden.
    pub hidden_marks: u64,
    /// Acknowledgements whose window was lowered.
    pub lowered: u64,
    /// Reductions of a window.
    pub reductions: u64,
    /// Segments dropped since they lay beyond the window.
    pub policed: u64,
    /// Native connections that have the controller's window, as they or those before them did not
    /// heed marks.
    pub deaf: u64,
    /// Acknowledgements that waited, the later ones that took the place of such included.
    pub held: u64,
    /// Connections that were translated, and are plain since: the peer gave no sign of ECN any more
    /// ([`Treatment::Plain`]), or had a SYN-ACK that agreed to nothing.
    pub lapsed: u64,
    /// Connections that opened by a SYN without ECN, after two that asked for it had no answer: a
    /// box on the way drops these, or the peer was not there yet.
    pub unanswered_asks: u64,
    /// Handshakes in which the guest spoke for itself, by [`Kind`].
    pub guests: [u64; Kind::ALL.len()],
    /// The same of peers.
    pub peers: [u64; Kind::ALL.len()],
}

impl Counters {
    /// A connection is treated so from now on.
    pub(super) fn opens(&mut self, before: Treatment, treatment: Treatment) {
        match treatment {
            Treatment::Translated => self.opened[0] += 1,
            Treatment::Native => self.opened[1] += 1,
            Treatment::Plain if before == Treatment::Translated => self.lapsed += 1,
            Treatment::Plain => self.opened[2] += 1,
            Treatment::Untouched(why) => self.untouched[why as usize] += 1,
            Treatment::Opening => {}
        }
    }

    /// Adds what was counted before.
    pub(super) fn count_on(&mut self, before: &Counters) {
        let arrays = self.opened.iter_mut().zip(before.opened);
        arrays.chain(self.untouched.iter_mut().zip(before.untouched)).for_each(|(n, m)| *n = n.saturating_add(m));
        for (n, m) in [
            (&mut self.acked_bytes, before.acked_bytes),
            (&mut self.marked_bytes, before.marked_bytes),
            (&mut self.hidden_marks, before.hidden_marks),
            (&mut self.lowered, before.lowered),
            (&mut self.reductions, before.reductions),
            (&mut self.policed, before.policed),
            (&mut self.deaf, before.deaf),
            (&mut self.held, before.held),
            (&mut self.lapsed, before.lapsed),
            (&mut self.unanswered_asks, before.unanswered_asks),
        ] {
            *n = n.saturating_add(m);
        }
        let kinds = self.guests.iter_mut().zip(before.guests);
        kinds.chain(self.peers.iter_mut().zip(before.peers)).for_each(|(n, m)| *n = n.saturating_add(m));
    }
}
