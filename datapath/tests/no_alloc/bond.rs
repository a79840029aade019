//! Two switches with a bond between them whose frames have numbers: choosing a member, numbering,
//! keeping what may be sent again, holding what came too early, loss, copies, and hellos. Not: what
//! is done once where members change.

use super::*;
use datapath::bond::order::OrderStats;
use datapath::bond::{BondSettings, MemberState, Mode};
use datapath::frame::Frame;
use datapath::program::{Member, MemberId};
use std::collections::VecDeque;

const GUEST: PortId = PortId(1);
/// The first member's port.
const MEMBERS: usize = 2;
/// For how long a frame is on its way over each cable, in nanoseconds.
const DELAYS_NS: [u64; 2] = [20_000, 300_000];
/// Of so many frames the second cable loses one.
const LOSES_ONE_OF: u32 = 300;
/// Time between two looks at the ports, and looks of the warm-up and of the test.
const LOOK_NS: u64 = 20_000;
const LOOKS: u32 = 10_000;

fn bonded(side: u32, mode: Mode) -> Program {
    let rate = Both { egress: Rate(1000 * MBIT), ingress: Rate(1000 * MBIT) };
    let members = (0..2).map(|n| Member { port: PortId(MEMBERS as u32 + n), rate }).collect();
    let bond = Some(BondSettings { mode, order: true, ..BondSettings::default() });
    let mut ports = vec![PortFeatures::default(); MEMBERS];
    ports.resize(MEMBERS + 2, PortFeatures { max_frame: 1518, ..PortFeatures::default() });
    Program {
        uplink: Some(Uplink { members, bond, ..Uplink::new(PortId(0), rate) }),
        tenants: vec![Tenant { attachment: Attachment::Vlan(10), ..Tenant::default() }].into(),
        endpoints: vec![Endpoint {
            identity: Identity { macs: vec![mac(side)], ..Identity::default() },
            queue_bytes: 1 << 20,
            ..Endpoint::new(TenantId(0), GUEST)
        }]
        .into(),
        ports: ports.into(),
        fdb_age_ns: AGE_NS,
        ..Program::default()
    }
}

struct Pair {
    pool: Pool,
    switches: [Switch; 2],
    /// What is on its way, by sender and member, and when it arrives.
    wires: [[VecDeque<(Instant, Frame)>; 2]; 2],
    /// What the endpoints send, each with whose it is.
    arrivals: Vec<(usize, Arrival)>,
    random: u64,
    now: Instant,
}

impl Pair {
    fn new(mode: Mode) -> Pair {
        let mut pool = Pool::new(PoolLimits { small: 4096, medium: 512, large: 64 });
        make_buffers(&mut pool);
        let now = Instant(1_000_000_000);
        let mut switches = [0, 1].map(|side| Switch::new(&bonded(side, mode), 1 + u64::from(side)).expect("sound"));
        for switch in &mut switches {
            for member in 0..2 {
                switch.set_member_state(&mut pool, now, MemberId(member), MemberState::Distributing);
            }
        }
        let arrivals = vec![
            (0, arrival(GUEST.0, 1, &udp(0, mac(1), 1000))),
            (0, arrival(GUEST.0, 16, &tcp(0, 1, 14_000, 2))),
            (1, arrival(GUEST.0, 2, &udp(1, mac(0), 100))),
        ];
        let wire = || VecDeque::with_capacity(4096);
        let wires = [[wire(), wire()], [wire(), wire()]];
        Pair { pool, switches, wires, arrivals, random: 0x2545_f491_4f6c_dd1d, now }
    }

    fn below(&mut self, n: u32) -> u32 {
        below(&mut self.random, n)
    }

    fn run(&mut self, looks: u32) {
        for _ in 0..looks {
            for index in 0..self.arrivals.len() {
                let rarity = self.arrivals[index].1.rarity;
                if self.below(rarity) == 0 {
                    self.read(index);
                }
            }
            (0..2).for_each(|side| self.work(side));
            self.now = self.now.plus_ns(LOOK_NS);
        }
    }

    fn read(&mut self, index: usize) {
        let (side, Arrival { bytes, offload, .. }) = &self.arrivals[index];
        if let Some(frame) = self.pool.alloc_from(bytes) {
            self.pool.meta_mut(&frame).offload = *offload;
            let _ = self.switches[*side].rx(&mut self.pool, self.now, GUEST, frame);
        }
    }

    fn work(&mut self, side: usize) {
        for member in 0..2 {
            while let Some(frame) = self.arrived(1 - side, member) {
                let port = PortId((MEMBERS + member) as u32);
                let _ = self.switches[side].rx(&mut self.pool, self.now, port, frame);
            }
        }
        while let Some((port, frame)) = self.switches[side].tx(&mut self.pool, self.now) {
            self.write(side, port, frame);
        }
        let _ = self.switches[side].poll_timeout();
    }

    fn arrived(&mut self, from: usize, member: usize) -> Option<Frame> {
        let wire = &mut self.wires[from][member];
        let is_there = wire.front().is_some_and(|(at, _)| *at <= self.now);
        if is_there { wire.pop_front().map(|(_, frame)| frame) } else { None }
    }

    /// A cable takes the frame itself, so what the bond is to keep is a copy.
    fn write(&mut self, side: usize, port: PortId, frame: Frame) {
        let Some(member) = (port.0 as usize).checked_sub(MEMBERS) else { return self.pool.free(frame) };
        let switch = &mut self.switches[side];
        if switch.wants_back(&self.pool, port, &frame)
            && let Some(copy) = self.pool.duplicate(&frame)
        {
            switch.give_back(&mut self.pool, self.now, port, copy);
        }
        if member == 1 && self.below(LOSES_ONE_OF) == 0 {
            return self.pool.free(frame);
        }
        self.wires[side][member].push_back((self.now.plus_ns(DELAYS_NS[member]), frame));
    }

    /// What the second switch has counted; both number their frames.
    fn order(&self) -> OrderStats {
        let [first, second] = self.switches.each_ref().map(|switch| switch.bond_peer().expect("it is asked for"));
        assert_eq!((first.plain, second.plain), (None, None));
        second.order
    }
}

#[test]
fn a_bond_with_numbers_runs_without_allocating() {
    for mode in [Mode::BalanceRr, Mode::Broadcast] {
        let mut pair = Pair::new(mode);
        pair.run(LOOKS);
        let was = pair.order();

        let before = allocations();
        pair.run(LOOKS);
        assert_eq!(allocations() - before, 0, "{mode:?}: allocations in {LOOKS} looks");

        let order = pair.order();
        assert!(order.received > was.received + u64::from(LOOKS), "{mode:?}: {order:?}");
        if mode == Mode::BalanceRr {
            assert!(order.held > was.held + 1000 && order.lost > was.lost, "{order:?}");
            let replayed: u64 = pair.switches[0].members().map(|member| member.counts.replayed).sum();
            assert_eq!(replayed, 0, "no member was given up");
        } else {
            assert!(order.duplicates > was.duplicates + 1000, "{order:?}");
        }
    }
}
