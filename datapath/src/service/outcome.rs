//! What becomes of a connection says how well its backend is.
//!
//! A connection that the backend refuses has failed, and so has one that it accepts and ends at
//! once: by a FIN or a reset within a second, with nothing sent, and with the numbers of its answer
//! to the SYN, which say that it has received nothing either. So its client has not provoked that:
//! a request that makes a server end the connection can be sent by anybody, five times and more. A
//! reset without an acknowledgement answers a segment of no connection; it says nothing. Nor does
//! an end count of a backend that has answered others lately: that one turns this client away.
//!
//! A protocol whose server speaks first sends something before it ends. A server that ends later
//! has waited for a client that sent nothing.
//!
//! A backend is well that has sent an answer which its client has acknowledged; and, as long as it
//! has ended nothing so within five minutes, one that has accepted a connection.

use super::connections::SEEN_NS;
use super::decide::Known;
use super::entry::{Entry, Key, Segment, State};
use super::running::{count, has_place};
use super::{Server, Services};
use crate::ids::EndpointId;
use crate::units::Instant;

impl Services {
    /// When a connection was accepted that its backend ends by this, at once.
    pub(super) fn broken_since(&self, now: Instant, known: &Known, entry: &Entry, said: &Segment) -> Option<Instant> {
        if !entry.is_broken_by(said) {
            return None;
        }
        // It is the last that changed its state.
        self.connections.seen(known.id).filter(|&seen| now.since(seen) < SEEN_NS)
    }

    /// What a connection has become by a segment of its backend, which came from there.
    pub(super) fn judge(
        &mut self,
        now: Instant,
        (known, from): (&Known, Option<EndpointId>),
        (before, after): (Entry, Entry),
        (said, broken_since): (&Segment, Option<Instant>),
    ) {
        let is_refused = (before.state, after.state) == (State::Asked, State::Closed) && said.refuses();
        let is_accepted = (before.state, after.state) == (State::Asked, State::Answered);
        if !(is_refused || is_accepted || broken_since.is_some()) || !self.is_its_own(known, from) {
            return;
        }
        let Some(running) = self.running_mut(&known.key) else { return };
        let Some(server) = running.servers.get_mut(usize::from(known.backend)) else { return };
        if is_accepted {
            let was_doubtful = server.health.is_doubtful();
            server.accepted(now);
            running.has_freed |= was_doubtful && !server.health.is_doubtful();
            return;
        }
        let count = if is_refused { &mut server.stats.refused } else { &mut server.stats.ended };
        *count += 1;
        if broken_since.is_some() {
            if server.answered > broken_since || server.has_served(now) {
                return;
            }
            server.health.breaks(now);
        }
        if server.failed(now) {
            self.fall_silent(now, &known.key, known.backend);
        }
    }

    /// A backend is ejected.
    pub(super) fn fall_silent(&mut self, now: Instant, key: &Key, backend: u8) {
        let Services { all, fronts, sweep, .. } = self;
        let running = fronts.get(key.front).and_then(|front| all.get_mut(front.service.0));
        if let Some(running) = running
            && let Some(server) = running.servers.get_mut(usize::from(backend))
        {
            server.fall_silent(now, sweep);
            running.has_freed = true;
        }
    }

    /// A connection was this and is that, by what was sent in it: its backend may have answered,
    /// and its counts are others.
    pub(super) fn account(&mut self, now: Instant, key: &Key, change: Option<(Entry, Entry)>) {
        if let Some((before, after)) = change
            && before.is_answered_in(&after)
            && let Some(running) = self.running_mut(key)
            && let Some(server) = running.servers.get_mut(usize::from(after.backend))
        {
            running.has_freed |= server.health.is_doubtful();
            server.answered(now);
        }
        self.recount(key, change);
    }

    /// The backend's counts, after its connection was this and is that.
    pub(super) fn recount(&mut self, key: &Key, change: Option<(Entry, Entry)>) {
        let Some((before, after)) = change else { return };
        // Its first segment in both directions may be the last one, with a FIN.
        if before.state == State::Sought
            && matches!(after.state, State::Open | State::Closing)
            && let Some(running) = self.running_mut(key)
        {
            running.stats.recovered += 1;
        }
        if before.kind() == after.kind() {
            return;
        }
        if has_place(before.kind())
            && !has_place(after.kind())
            && let Some(running) = self.running_mut(key)
        {
            running.has_freed = true;
        }
        let Some(server) = self.server_mut(key, after.backend) else { return };
        count(&mut server.stats, before.kind(), false);
        count(&mut server.stats, after.kind(), true);
    }

    pub(super) fn server_mut(&mut self, key: &Key, backend: u8) -> Option<&mut Server> {
        let front = self.fronts.get(key.front)?;
        self.all.get_mut(front.service.0)?.servers.get_mut(usize::from(backend))
    }
}
