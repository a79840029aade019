//! The policies of the worker's bonds: what links do comes in, which members carry frames goes out
//! to the switch.
//!
//! A policy is asked only when a link has changed or its time has come. After a failover, what is
//! behind the bond is announced over the member that is active now, some frames a round.

use super::{Backing, SwitchSlot, Task, Worker};
use crate::announce;
use control::bond::{Command, LinkState, Policy, Settings};
use datapath::bond::hello::HelloKey;
use datapath::bond::{Duplex, MemberId, MemberState, Mode, Negotiated, Plain};
use datapath::program::{Attachment, EndpointId, PortId};
use datapath::units::{Instant, Rate};

/// Announcements in a round: some 20 us of the worker's time.
const ANNOUNCED: usize = 16;
/// Between one notice and the next, in nanoseconds: Linux's `peer_notif_delay` is `miimon` where
/// nothing is said, whose default this is.
const NOTICE_NS: u64 = control::bond::DEFAULT_MIIMON_NS;

/// What a bond is to be.
pub struct BondPost {
    /// Its policy.
    pub settings: Settings,
    /// How often addresses are announced after a failover.
    pub notices: u32,
    /// What its hellos are under, where it has a secret.
    pub key: Option<HelloKey>,
}

/// A bond at its switch.
pub struct Bonded {
    policy: Policy,
    /// By member: its port, its link as it was last told, and whether its device is open.
    members: Vec<Member>,
    notices: u32,
    notice: Option<Notice>,
    /// In `802.3ad`: the states of members as they were last told, which follow no command, and
    /// whether a cable leads back.
    agreed: Option<Vec<(MemberState, bool)>>,
    /// With numbers: why frames have none, as it was last told.
    plain: Option<Option<Plain>>,
}

/// What is said of a bond.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum BondNews {
    /// What became of a member.
    Command(Command),
    /// The other end of a member says that it is this very system.
    Looped(MemberId),
    /// Frames have numbers now, or have none.
    Plain(Option<Plain>),
    /// The link of a member has negotiated something else than before, or half duplex, or less than
    /// the member's rate; what it is configured for, where it carries less.
    Negotiated(MemberId, Negotiated, Option<Rate>),
}

#[derive(Clone, Copy)]
struct Member {
    port: PortId,
    link: LinkState,
    /// What the link had last negotiated.
    negotiated: Option<Negotiated>,
    is_open: bool,
}

impl Member {
    fn link(&self) -> LinkState {
        LinkState { is_up: self.link.is_up && self.is_open, ..self.link }
    }
}

/// Notices that are yet to be given.
#[derive(Clone, Copy)]
struct Notice {
    left: u32,
    next: Instant,
    /// The endpoint that is announced next.
    at: u32,
}

impl Bonded {
    /// When it is to be looked at, if no link changes before.
    pub(super) fn due(&self) -> Option<Instant> {
        let policy = self.policy.poll_timeout();
        let notice = self.notice.map(|notice| notice.next);
        policy.into_iter().chain(notice).min()
    }

    fn place(&self, port: PortId) -> Option<usize> {
        self.members.iter().position(|member| member.port == port)
    }
}

impl Worker {
    /// Gives a switch's bond its policy, or another, or takes it away. What is known of links stays
    /// known.
    pub(super) fn bond(&mut self, index: usize, post: Option<Box<BondPost>>) {
        let now = self.outside.now;
        let Some(switch_slot) = self.switch_slots.get_mut(index) else { return };
        let before = switch_slot.bond.take();
        let Some(post) = post else { return };
        switch_slot.switch.set_bond_key(&mut self.pool, now, post.key);
        switch_slot.touched = true;
        let views: Vec<_> = switch_slot.switch.members().collect();
        let states: Vec<MemberState> = views.iter().map(|view| view.state).collect();
        let active = views.iter().position(|view| view.is_active).map(|n| MemberId(n as u8));
        let mut policy = Policy::new(post.settings, &states, active);
        let mut members = Vec::new();
        for (n, view) in views.iter().enumerate() {
            let known = before.as_ref().and_then(|before| Some(before.members[before.place(view.port)?]));
            let is_open = match switch_slot.ways.get(view.port.0 as usize).copied().flatten() {
                Some(Backing::Device(device)) => self.outside.devices.get(device).is_some_and(|d| d.port.is_some()),
                // A link of this daemon has no carrier to lose.
                Some(Backing::Link(..)) => true,
                None => false,
            };
            // Until somebody says otherwise, which takes a millisecond: so a restart loses nothing.
            let unknown = LinkState { is_up: true, ..LinkState::default() };
            let link = known.map_or(unknown, |known| known.link);
            let negotiated = known.and_then(|known| known.negotiated);
            let member = Member { port: view.port, link, negotiated, is_open };
            policy.set_link(now, MemberId(n as u8), member.link());
            members.push(member);
        }
        let notice = before.and_then(|before| before.notice);
        let agreed = states.into_iter().map(|state| (state, false)).collect();
        let agreed = (policy.settings().mode == Mode::Lacp).then_some(agreed);
        let plain = switch_slot.switch.bond_plain();
        switch_slot.bond = Some(Box::new(Bonded { policy, members, notices: post.notices, notice, agreed, plain }));
    }

    /// The link of a device is so now.
    pub(super) fn hear_of_link(&mut self, device: usize, link: LinkState) {
        // First: what is up is used as what it is.
        self.negotiate(device, link);
        self.change_member(device, |member| member.link = link);
    }

    /// Says what a member's link has negotiated.
    fn negotiate(&mut self, device: usize, link: LinkState) {
        let now = self.outside.now;
        let Some(device) = self.outside.devices.get(device) else { return };
        let Some(switch_slot) = self.switch_slots.get_mut(device.switch) else { return };
        let Some(bond) = &mut switch_slot.bond else { return };
        let Some(place) = bond.place(device.id) else { return };
        let (id, negotiated) = (MemberId(place as u8), link.is_up.then_some(link.negotiated));
        switch_slot.switch.set_member_negotiated(&mut self.pool, now, id, negotiated);
        switch_slot.touched = true;
        let Some(negotiated) = negotiated else { return };
        let before = bond.members[place].negotiated.replace(negotiated);
        let view = switch_slot.switch.members().nth(place);
        let wanted = view.filter(|view| view.rate < view.configured).map(|view| view.configured);
        let is_less = negotiated.duplex == Duplex::Half || wanted.is_some();
        if before != Some(negotiated) && (before.is_some() || is_less) {
            self.tell(device.switch, BondNews::Negotiated(id, negotiated, wanted));
        }
    }

    /// A device is open now, or is not.
    pub(super) fn open_member(&mut self, device: usize, is_open: bool) {
        self.change_member(device, |member| member.is_open = is_open);
    }

    fn change_member(&mut self, device: usize, change: impl FnOnce(&mut Member)) {
        let now = self.outside.now;
        let Some(device) = self.outside.devices.get(device) else { return };
        let Some(switch_slot) = self.switch_slots.get_mut(device.switch) else { return };
        let Some(bond) = &mut switch_slot.bond else { return };
        let Some(place) = bond.place(device.id) else { return };
        change(&mut bond.members[place]);
        bond.policy.set_link(now, MemberId(place as u8), bond.members[place].link());
    }

    /// Lets policies do what is due.
    pub(super) fn run_bonds(&mut self) {
        for index in 0..self.switch_slots.len() {
            let now = self.outside.now;
            let is_due =
                self.switch_slots[index].bond.as_ref().and_then(|bond| bond.due()).is_some_and(|due| due <= now);
            if is_due {
                self.run_bond(index, now);
                self.announce_behind(index, now);
            }
            self.tell_agreed(index);
            self.tell_plain(index);
        }
    }

    fn run_bond(&mut self, index: usize, now: Instant) {
        let mut told = Vec::new();
        let switch_slot = &mut self.switch_slots[index];
        let Some(bond) = &mut switch_slot.bond else { return };
        while let Some(command) = bond.policy.poll(now) {
            switch_slot.touched = true;
            match command {
                Command::State(member, state) => {
                    switch_slot.switch.set_member_state(&mut self.pool, now, member, state);
                }
                Command::Active(member) => switch_slot.switch.set_active_member(&mut self.pool, now, member),
                Command::Notify(_) => {
                    bond.notice = (bond.notices > 0).then_some(Notice { left: bond.notices, next: now, at: 0 });
                }
            }
            // Of a link that is up nothing is agreed yet.
            let is_agreed = bond.agreed.is_some() && matches!(command, Command::State(..));
            told.extend((!is_agreed).then_some(command));
        }
        for command in told {
            self.tell(index, BondNews::Command(command));
        }
    }

    fn tell(&self, switch: usize, news: BondNews) {
        // A full queue of tasks has enough to log.
        let _ = self.tasks.try_send(Task::Bond { switch, news });
    }

    /// Says whether frames have numbers.
    fn tell_plain(&mut self, index: usize) {
        let SwitchSlot { bond: Some(bond), switch, .. } = &mut self.switch_slots[index] else { return };
        let plain = switch.bond_plain();
        if std::mem::replace(&mut bond.plain, plain) != plain
            && let Some(plain) = plain
        {
            self.tell(index, BondNews::Plain(plain));
        }
    }

    /// Says what LACP has made of members.
    fn tell_agreed(&mut self, index: usize) {
        let SwitchSlot { bond, switch, .. } = &mut self.switch_slots[index];
        let Some(agreed) = bond.as_mut().and_then(|bond| bond.agreed.as_mut()) else { return };
        let (mut news, looped) = (Vec::new(), switch.looped_members());
        for (n, ((told, was_loop), view)) in (0..).map(MemberId).zip(agreed.iter_mut().zip(switch.members())) {
            if std::mem::replace(told, view.state) != view.state {
                news.push(BondNews::Command(Command::State(n, view.state)));
            }
            let is_loop = looped & 1 << n.0 != 0;
            if std::mem::replace(was_loop, is_loop) != is_loop && is_loop {
                news.push(BondNews::Looped(n));
            }
        }
        news.into_iter().for_each(|news| self.tell(index, news));
    }

    /// Announces some of the addresses behind a bond, as if their owners did: reverse ARP from the
    /// endpoint's own port.
    fn announce_behind(&mut self, index: usize, now: Instant) {
        let switch_slot = &mut self.switch_slots[index];
        let Some(notice) = switch_slot.bond.as_mut().and_then(|bond| bond.notice.as_mut()) else { return };
        if notice.next > now {
            return;
        }
        let mut said = 0;
        let all = switch_slot.switch.program().endpoints.len() as u32;
        while notice.at < all && said < ANNOUNCED {
            let faces = faces(switch_slot.switch.program(), EndpointId(notice.at));
            notice.at += 1;
            for (port, mac) in faces {
                said += 1;
                if let Some(frame) = self.pool.alloc_from(&announce::frame(mac)) {
                    switch_slot.switch.rx(&mut self.pool, now, port, frame);
                    switch_slot.touched = true;
                }
            }
        }
        if notice.at == all {
            (notice.left, notice.at, notice.next) = (notice.left - 1, 0, now.plus_ns(NOTICE_NS));
        }
        if notice.left == 0
            && let Some(bond) = &mut switch_slot.bond
        {
            bond.notice = None;
        }
    }
}

/// The declared addresses of an endpoint that is reached over the uplink, with its port.
fn faces(program: &datapath::program::Program, id: EndpointId) -> Vec<(PortId, datapath::wire::Mac)> {
    let Some(endpoint) = program.endpoints.get(id.0).filter(|endpoint| !endpoint.trunk) else { return Vec::new() };
    let attachment = program.tenants.get(endpoint.tenant.0).map(|tenant| tenant.attachment);
    if matches!(attachment, None | Some(Attachment::Isolated | Attachment::Vxlan(_))) {
        return Vec::new();
    }
    endpoint.identity.macs.iter().map(|&mac| (endpoint.port, mac)).collect()
}
