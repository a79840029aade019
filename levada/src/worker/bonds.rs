//! The policies of the worker's bonds: what links do comes in, which members carry frames goes out
//! to the switch.
//!
//! A policy is asked only when a link has changed or its time has come. After a failover, what is
//! behind the bond is announced over the member that is active now, and its guests are asked which
//! groups they receive, some frames a round.

mod passes;

use super::{Backing, SwitchSlot, Task, Worker};
use crate::worker::announce;
use control::bond::{Command, LinkState, LinkView, Notices, Policy, Settings};
use datapath::bond::hello::HelloKey;
use datapath::bond::{Duplex, MOST_MEMBERS, MemberId, MemberState, MembersState, Mode, Negotiated, Plain};
use datapath::program::{Attachment, Endpoint, EndpointId, PortId, Program};
use datapath::service::ServiceId;
use datapath::switch::{MemberView, State, Switch};
use datapath::units::{Instant, Rate};
use datapath::wire::Mac;
use passes::{Passes, STEP};

/// Learned addresses of an endpoint that are announced, those seen last.
const MOST_NAMED: usize = 256;
/// Between one membership query and the next, in nanoseconds: Linux's.
const QUERY_NS: u64 = 200_000_000;

/// What is known of the other end is told when it has been so for this long, in nanoseconds: what
/// comes and goes while both ends meet is not.
pub(super) const STEADY_NS: u64 = 100_000_000;

/// What a bond is to be.
pub struct BondPost {
    /// Its policy.
    pub settings: Settings,
    /// What is said after a failover.
    pub notices: Notices,
    /// What its hellos are under, where it has a secret.
    pub key: Option<HelloKey>,
}

/// A bond at its switch.
pub struct Bonded {
    policy: Policy,
    /// By member: its port, its link as it was last told, and whether its device is open.
    members: Vec<Member>,
    notices: Notices,
    /// Announcements of addresses behind the bond that are yet to be made: of those that are
    /// declared, and of those that were learned.
    announcing: Option<Passes>,
    naming: Option<Passes>,
    /// Membership queries to endpoints that are yet to be made.
    asking: Option<Passes>,
    /// The member by which memberships of groups leave, last.
    groups_at: Option<MemberId>,
    /// The states of members as they were last told, and whether a cable leads back. In `802.3ad`
    /// they follow no command, and a change of the bond may change them in each mode.
    states: Vec<(MemberState, bool)>,
    /// The bond was changed: states are to be looked at.
    is_changed: bool,
    /// In `802.3ad`: members of which this end, and the other, has not come into sync in time, a
    /// bit each, as it was last told.
    churned: [u16; 2],
    /// In `802.3ad`: the system at the other end of the member that began to carry frames last.
    partner: Option<Mac>,
    /// With numbers: what was last told; and since when it is otherwise.
    told: Told,
    untold_at: Option<Instant>,
}

/// What is told of a bond whose frames have numbers.
#[derive(Clone, Copy, PartialEq, Eq)]
struct Told {
    /// Why they have none.
    plain: Option<Option<Plain>>,
    /// Members that they leave out, and of those the ones that lead back, a bit each.
    left_out: u16,
    looped: u16,
}

/// What is said of a bond.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum BondNews {
    /// What became of a member.
    Command(Command),
    /// The other end of a member says that it is this very system.
    Looped(MemberId),
    /// In `802.3ad`: this end of a member, or with `true` in the middle the other end, has not come
    /// into sync in time; or has, with `false` at the end.
    Churned(MemberId, bool, bool),
    /// In `802.3ad`: a member carries frames to this system, and the one before did to another,
    /// which is the first of the two.
    Partner(MemberId, [Mac; 2]),
    /// Frames have numbers now, or have none.
    Plain(Option<Plain>),
    /// Frames leave a member out, since nobody at its other end answers; or do so no more.
    LeftOut(MemberId, bool),
    /// The link of a member has negotiated something else than before, or half duplex, or less than
    /// the member's rate; what it is configured for, where it carries less.
    Negotiated(MemberId, Negotiated, Option<Rate>),
}

#[derive(Clone, Copy)]
struct Member {
    port: PortId,
    link: LinkState,
    /// Somebody has said what its link is like.
    is_told: bool,
    /// What the link had last negotiated.
    negotiated: Option<Negotiated>,
    is_open: bool,
}

impl Member {
    fn link(&self) -> LinkState {
        LinkState { is_up: self.link.is_up && self.is_open, ..self.link }
    }

    /// Tells the policy of its link.
    fn show(&self, policy: &mut Policy, now: Instant, id: MemberId) {
        match self.is_told {
            true => policy.set_link(now, id, self.link()),
            false => policy.suppose_link(now, id, self.link()),
        }
    }
}

impl Bonded {
    /// When it is to be looked at, if no link changes before.
    pub(super) fn due(&self) -> Option<Instant> {
        let policy = self.policy.poll_timeout();
        let passes = [self.announcing, self.naming, self.asking].into_iter().flatten().map(|passes| passes.due());
        let untold = self.untold_at.map(|at| at.plus_ns(STEADY_NS));
        policy.into_iter().chain(passes).chain(untold).min()
    }

    /// By member: what is known of its link.
    pub(super) fn links(&self) -> impl Iterator<Item = LinkView> + '_ {
        self.policy.links()
    }

    /// The port of the member that is preferred.
    fn primary(&self) -> Option<PortId> {
        let primary = self.policy.settings().primary?;
        self.members.get(usize::from(primary.0)).map(|member| member.port)
    }

    fn place(&self, port: PortId) -> Option<usize> {
        self.members.iter().position(|member| member.port == port)
    }
}

/// Members whose bits differ, each with what it is now.
fn changed(was: u16, is: u16) -> impl Iterator<Item = (MemberId, bool)> {
    let members = (0..MOST_MEMBERS as u8).filter(move |n| (was ^ is) & 1 << n != 0);
    members.map(move |n| (MemberId(n), is & 1 << n != 0))
}

/// Bits of members, a bit each, by their places now; by member: where it was.
fn moved(bits: u16, was: &[Option<MemberId>]) -> u16 {
    let is_set = |was: &Option<MemberId>| was.is_some_and(|was| bits & 1 << was.0 != 0);
    was.iter().enumerate().filter(|(_, was)| is_set(was)).fold(0, |all, (n, _)| all | 1 << n)
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
        // What the operator has changed shows against what was so before.
        let primary_was = before.as_ref().map(|before| before.primary());
        let primary = match primary_was {
            Some(was) => views.iter().position(|view| Some(view.port) == was).map(|n| MemberId(n as u8)),
            None => post.settings.primary,
        };
        let mut policy = Policy::new(Settings { primary, ..post.settings.clone() }, &states, active);
        let place = |before: &Bonded, view: &MemberView| before.place(view.port).map(|n| MemberId(n as u8));
        let was: Vec<Option<MemberId>> =
            views.iter().map(|view| before.as_ref().and_then(|before| place(before, view))).collect();
        match &before {
            Some(before) => policy.go_on(&before.policy, &was),
            None => policy.await_primary(),
        }
        let mut members = Vec::new();
        for (n, view) in views.iter().enumerate() {
            let known = before.as_ref().and_then(|before| Some(before.members[usize::from(was[n]?.0)]));
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
            let is_told = known.is_some_and(|known| known.is_told);
            let member = Member { port: view.port, link, is_told, negotiated, is_open };
            member.show(&mut policy, now, MemberId(n as u8));
            members.push(member);
        }
        policy.set_settings(now, post.settings);
        let partner = before.as_ref().and_then(|before| before.partner);
        let passes = before.as_ref().map(|before| [before.announcing, before.naming, before.asking]);
        let [announcing, naming, asking] = passes.unwrap_or_default();
        let groups_at = before.as_ref().and_then(|before| before.groups_at);
        // What the change itself did to members is yet to be told.
        let (states, churned, told, untold_at) = match &before {
            Some(before) => {
                let state = |was: &Option<MemberId>| was.map(|was| before.states[usize::from(was.0)]);
                let bits = |bits| moved(bits, &was);
                let Told { plain, left_out, looped } = before.told;
                let told = Told { plain, left_out: bits(left_out), looped: bits(looped) };
                let states = was.iter().map(|was| state(was).unwrap_or_default()).collect();
                (states, before.churned.map(bits), told, before.untold_at)
            }
            None => {
                let told = Told { looped: 0, ..told_of(&switch_slot.switch) };
                let states = states.into_iter().map(|state| (state, false)).collect();
                (states, switch_slot.switch.churned_members(), told, None)
            }
        };
        switch_slot.bond = Some(Box::new(Bonded {
            policy,
            members,
            notices: post.notices,
            announcing,
            naming,
            asking,
            groups_at,
            states,
            is_changed: true,
            churned,
            partner,
            told,
            untold_at,
        }));
    }

    /// How a switch's members are used, for the next process.
    pub(super) fn members_state(&self, index: usize) -> MembersState {
        let bond = self.switch_slots.get(index).and_then(|slot| slot.bond.as_ref());
        bond.map(|bond| bond.policy.export()).unwrap_or_default()
    }

    /// Members that another process used are used at once: the other end sends to them. An older
    /// one says it only of those that it has agreed on with the other end.
    pub(super) fn adopt_members(&mut self, index: usize, state: &State) {
        let Some(bond) = self.switch_slots.get_mut(index).and_then(|slot| slot.bond.as_mut()) else { return };
        let numbered = state.bond.iter().flat_map(|peer| peer.members.iter().map(|&(id, _)| id));
        let agreed = state.lacp.iter().map(|&(id, _)| id);
        numbered.chain(agreed).for_each(|id| bond.policy.skip_updelay(id));
        bond.policy.import(self.outside.now, &state.members);
    }

    /// The operator has chosen the active member.
    pub(super) fn choose_active(&mut self, index: usize, member: MemberId) {
        if let Some(SwitchSlot { bond: Some(bond), .. }) = self.switch_slots.get_mut(index) {
            bond.policy.set_active(member);
        }
    }

    /// The link of a device is so now.
    pub(super) fn hear_of_link(&mut self, device: usize, link: LinkState) {
        // First: what is up is used as what it is.
        self.negotiate(device, link);
        self.change_member(device, |member| (member.link, member.is_told) = (link, true));
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
        bond.members[place].show(&mut bond.policy, now, MemberId(place as u8));
    }

    /// Lets policies do what is due.
    pub(super) fn run_bonds(&mut self) {
        for index in 0..self.switch_slots.len() {
            let now = self.outside.now;
            let is_due =
                self.switch_slots[index].bond.as_ref().and_then(|bond| bond.due()).is_some_and(|due| due <= now);
            if is_due {
                self.run_bond(index, now);
                self.follow_groups(index, now);
                self.say_behind(index, now);
                self.say_learned(index, now);
                // No read pays for that.
                self.outside.look();
            }
            self.tell_states(index);
            self.tell_plain(index, now);
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
                    bond.announcing = Passes::begin(bond.notices.announcements, now);
                    bond.naming = bond.announcing;
                }
            }
            if let Command::State(member, state) = command {
                let was = bond.states.get_mut(usize::from(member.0)).map(|(was, _)| was);
                // Of a link that is up nothing is agreed yet, and what changed back was not told.
                let is_news = bond.policy.settings().mode != Mode::Lacp
                    && was.is_some_and(|was| std::mem::replace(was, state) != state);
                if !is_news {
                    continue;
                }
            }
            told.push(command);
        }
        for command in told {
            self.tell(index, BondNews::Command(command));
        }
    }

    fn tell(&self, switch: usize, news: BondNews) {
        // A full queue of tasks has enough to log.
        let _ = self.tasks.try_send(Task::Bond { switch, news });
    }

    /// Says whether frames have numbers, and over which members they do not go.
    fn tell_plain(&mut self, index: usize, now: Instant) {
        let SwitchSlot { bond: Some(bond), switch, .. } = &mut self.switch_slots[index] else { return };
        let is = told_of(switch);
        if is == bond.told {
            bond.untold_at = None;
            return;
        }
        if now < bond.untold_at.get_or_insert(now).plus_ns(STEADY_NS) {
            return;
        }
        bond.untold_at = None;
        let was = std::mem::replace(&mut bond.told, is);
        if was.plain != is.plain
            && let Some(plain) = is.plain
        {
            self.tell(index, BondNews::Plain(plain));
        }
        for (member, _) in changed(was.looped, is.looped | was.looped) {
            self.tell(index, BondNews::Looped(member));
        }
        for (member, is_so) in changed(was.left_out & !was.looped, is.left_out & !is.looped) {
            self.tell(index, BondNews::LeftOut(member, is_so));
        }
    }

    /// Says what LACP, or a change of the bond, has made of members.
    fn tell_states(&mut self, index: usize) {
        let SwitchSlot { bond, switch, .. } = &mut self.switch_slots[index];
        let Some(Bonded { policy, states, is_changed, churned, partner, .. }) = bond.as_deref_mut() else { return };
        if !std::mem::take(is_changed) && policy.settings().mode != Mode::Lacp {
            return;
        }
        // Of other modes `tell_plain` says it.
        let looped = if policy.settings().mode == Mode::Lacp { switch.looped_members() } else { 0 };
        let mut news = Vec::new();
        let was_churned = std::mem::replace(churned, switch.churned_members());
        for (is_other, (was, is)) in [false, true].into_iter().zip(was_churned.into_iter().zip(*churned)) {
            news.extend(changed(was, is).map(|(member, is_so)| BondNews::Churned(member, is_other, is_so)));
        }
        for (n, ((told, was_loop), view)) in (0..).map(MemberId).zip(states.iter_mut().zip(switch.members())) {
            if std::mem::replace(told, view.state) != view.state {
                news.push(BondNews::Command(Command::State(n, view.state)));
                let system = switch.lacp().nth(n.0.into()).map(|lacp| lacp.partner.system);
                let is_known = |system: &Mac| view.state == MemberState::Distributing && system.0 != [0; 6];
                if let Some(system) = system.filter(is_known) {
                    let before = partner.replace(system).filter(|&before| before != system);
                    news.extend(before.map(|before| BondNews::Partner(n, [before, system])));
                }
            }
            let is_loop = looped & 1 << n.0 != 0;
            if std::mem::replace(was_loop, is_loop) != is_loop && is_loop {
                news.push(BondNews::Looped(n));
            }
        }
        news.into_iter().for_each(|news| self.tell(index, news));
    }

    /// Announces some of the addresses behind a bond, as if their owners did, from their own ports,
    /// and services' after them; and asks some endpoints which groups they receive, so that they
    /// say it over the member that carries this now.
    fn say_behind(&mut self, index: usize, now: Instant) {
        let SwitchSlot { switch, bond: Some(bond), touched, .. } = &mut self.switch_slots[index] else { return };
        let all = switch.program().endpoints.len() as u32;
        let services = switch.program().services.len() as u32;
        for id in Passes::step(&mut bond.announcing, all + services, now, bond.notices.gap_ns) {
            if id >= all {
                switch.announce_service(&mut self.pool, now, ServiceId(id - all));
                *touched = true;
                continue;
            }
            let Some(port) = behind(switch.program(), EndpointId(id)).map(|endpoint| endpoint.port) else { continue };
            let identity = &switch.program().endpoints[id as usize].identity;
            for frame in announce::all(identity) {
                if let Some(frame) = self.pool.alloc_from(&frame) {
                    switch.rx(&mut self.pool, now, port, frame);
                    *touched = true;
                }
            }
        }
        for id in Passes::step(&mut bond.asking, all, now, QUERY_NS) {
            if behind(switch.program(), EndpointId(id)).is_none() {
                continue;
            }
            for frame in announce::queries() {
                if let Some(frame) = self.pool.alloc_from(&frame) {
                    switch.deliver_own(&mut self.pool, EndpointId(id), frame);
                    *touched = true;
                }
            }
        }
    }

    /// Announces some of the addresses that were learned behind a bond, in their names and behind
    /// their tags, as the endpoint's that they were learned from. So many endpoints have their turn
    /// in a round, or so many addresses.
    fn say_learned(&mut self, index: usize, now: Instant) {
        let SwitchSlot { switch, bond: Some(bond), touched, .. } = &mut self.switch_slots[index] else { return };
        let Some((mut at, mut from)) = Passes::place(bond.naming.as_ref(), now) else { return };
        let all = switch.program().endpoints.len() as u32;
        let (end, mut room) = (all.min(at + STEP), STEP as usize);
        while at < end {
            let id = EndpointId(at);
            let mut learned = Vec::new();
            if attached(switch.program(), id).is_some() {
                learned.extend(switch.learned_by(now, id, MOST_NAMED).1.skip(from as usize).take(room));
            }
            for one in &learned {
                if let Some(frame) = self.pool.alloc_from(&announce::tagged(one.mac, one.vlan)) {
                    switch.announce(&mut self.pool, now, id, frame);
                    *touched = true;
                }
            }
            room -= learned.len();
            if room == 0 {
                from += learned.len() as u32;
                break;
            }
            (at, from) = (at + 1, 0);
        }
        Passes::reach(&mut bond.naming, (at, from), all, now, bond.notices.gap_ns);
    }

    /// Memberships of groups leave by another member where the first that may send is another, or
    /// the active one: a switch outside is to learn where their receivers are.
    fn follow_groups(&mut self, index: usize, now: Instant) {
        let SwitchSlot { switch, bond: Some(bond), .. } = &mut self.switch_slots[index] else { return };
        let mode = bond.policy.settings().mode;
        let carries = |view: &MemberView| match mode {
            Mode::ActiveBackup => view.is_active,
            Mode::BalanceRr => view.state == MemberState::Distributing,
            _ => false,
        };
        let Some(at) = switch.members().position(|view| carries(&view)).map(|n| MemberId(n as u8)) else { return };
        if bond.groups_at.replace(at).is_some_and(|before| before != at) {
            bond.asking = Passes::begin(bond.notices.queries, now);
        }
    }
}

/// What is to be told of a bond's numbers.
fn told_of(switch: &Switch) -> Told {
    let plain = switch.bond_plain();
    // In `802.3ad` `tell_states` says it.
    let looped = if plain.is_some() { switch.looped_members() } else { 0 };
    Told { plain, left_out: switch.left_out_members(), looped }
}

/// An endpoint that is reached over the uplink by its own address.
fn behind(program: &Program, id: EndpointId) -> Option<&Endpoint> {
    attached(program, id).filter(|endpoint| !endpoint.trunk)
}

/// An endpoint whose network reaches the uplink, and not through tunnels.
fn attached(program: &Program, id: EndpointId) -> Option<&Endpoint> {
    let endpoint = program.endpoints.get(id.0)?;
    let attachment = program.tenants.get(endpoint.tenant.0)?.attachment;
    (!matches!(attachment, Attachment::Isolated | Attachment::Vxlan(_))).then_some(endpoint)
}
