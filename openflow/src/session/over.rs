//! Connections that have no backend, or have it no longer: what their ends are told.

use super::Session;
use crate::balance::Balancer;
use crate::ending::Asked;
use crate::rules::{Client, Rules, normal};
use crate::wire::{Action, FlowStats, Message, PacketOut, port};
use control::config::openflow::Mode;
use std::collections::BTreeSet;
use std::sync::Arc;

/// Clients that are refused in a second, at a switch: as many as a switch of ours answers.
const MOST_REFUSALS: u32 = 1000;
const SECOND_NS: u64 = 1_000_000_000;

/// Whether a flow brings segments of connections here that end since their backend is down (`lost`:
/// services and backends).
pub(super) fn is_of_lost(flow: &FlowStats, rules: &Rules, lost: &BTreeSet<(usize, usize)>) -> bool {
    let named = rules.connection_of(flow.cookie).filter(|_| flow.table != 0).and_then(|(named, _)| named);
    named.is_some_and(|(front, backend)| lost.contains(&(rules.fronts[front].service, backend)))
}

impl Session {
    /// No backend takes a new connection.
    pub(super) fn refuse(&mut self, front: usize, in_port: u32, data: &[u8]) {
        let Some(front) = self.rules.fronts.get(front).filter(|front| self.rules.refuses(front.service)) else {
            return;
        };
        let second = self.heard.0 / SECOND_NS;
        let (was, count) = self.refusals;
        self.refusals = if was == second { (was, count.saturating_add(1)) } else { (second, 1) };
        if self.refusals.1 > MOST_REFUSALS {
            return;
        }
        let refusal = Asked::of(data).and_then(|asked| asked.refusal(front.mac));
        self.frames.extend(refusal.map(|data| back_to(in_port, data)));
    }

    /// A connection is over, of which a segment has come, from the client or (`to`) from the
    /// backend: both ends are told so. What is no segment, or a RST itself, goes on.
    pub(super) fn cut(&mut self, front: usize, backend: usize, to: Option<Client>, in_port: u32, data: Vec<u8>) {
        let rules = Arc::clone(&self.rules);
        let told = Asked::of(&data).zip(rules.pair(front, backend)).and_then(|(asked, (front, target))| {
            let [sender, receiver] = asked.macs;
            let (service, server) = ((front.mac, front.at()), (target.mac, target.at()));
            Some(match to {
                Some(client) => [
                    asked.reset((receiver, client), (sender, server.1))?,
                    asked.end(service, (receiver, client), false)?,
                ],
                None => {
                    let client = (sender, asked.from()?);
                    [asked.reset(service, client)?, asked.end(client, server, false)?]
                }
            })
        });
        let Some([back, on]) = told else {
            return self.frames.extend(rules.send(front, backend, to.is_some(), in_port, data));
        };
        self.frames.push(back_to(in_port, back));
        self.frames.push(PacketOut { in_port, actions: vec![normal()], data: on });
    }

    /// A client's segment of a connection that is over, translated for its backend: both ends are
    /// told so, and connection tracking, whose numbers are those behind the segment.
    pub(super) fn cut_tracked(
        &mut self,
        front: usize,
        backend: usize,
        in_port: u32,
        data: &[u8],
        balancer: &mut Balancer,
    ) {
        let rules = Arc::clone(&self.rules);
        let Some((front, target)) =
            rules.pair(front, backend).filter(|(front, _)| balancer.is_lost(front.service, backend))
        else {
            return;
        };
        let (service, server) = ((front.mac, front.at()), (target.mac, target.at()));
        let told = Asked::of(data).and_then(|asked| {
            let client = (asked.macs[0], asked.from()?);
            let tracked = asked.end(client, service, true)?;
            Some((asked.reset(service, client)?, asked.end(client, server, false)?, tracked))
        });
        let Some((back, on, tracked)) = told else { return };
        balancer.count_cut(front.service, backend);
        self.frames.push(back_to(in_port, back));
        self.frames.push(PacketOut { in_port, actions: vec![normal()], data: on });
        self.frames.push(PacketOut { in_port, actions: vec![Action::Output(port::TABLE, 0)], data: tracked });
    }

    /// Next segments of connections that are over come here. `again`: the flows that have them do
    /// so are sent once more.
    pub(super) fn end_lost(&mut self, balancer: &Balancer, again: bool) {
        let rules = Arc::clone(&self.rules);
        let mut lost = BTreeSet::new();
        for (at, front) in rules.fronts.iter().enumerate() {
            for backend in 0..rules.targets[at].len() {
                let is_lost = balancer.is_lost(front.service, backend);
                if is_lost {
                    lost.insert((front.service, backend));
                }
                let was_lost = self.lost.contains(&(front.service, backend));
                let is_due = is_lost != was_lost || again && is_lost && self.mode == Mode::Hash;
                if is_due && let Some(change) = rules.end(self.mode, at, backend, is_lost) {
                    self.send(&Message::FlowMod(change));
                }
            }
        }
        self.lost = lost;
    }
}

/// A frame of the controller's, out of a port.
fn back_to(in_port: u32, data: Vec<u8>) -> PacketOut {
    PacketOut { in_port, actions: vec![Action::Output(port::IN_PORT, 0)], data }
}
