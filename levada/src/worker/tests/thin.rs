//! What an uplink's port is told to read a part of.

use super::*;
use datapath::intake::thin::Thinned;
use datapath::program::Uplink;
use datapath::units::{Both, Rate};
use std::sync::{Arc, Mutex};

/// An uplink's port whose ring never ends while somebody floods: of 16 frames 15 are for endpoint 1
/// in VLAN 10, and one is for endpoint 2 in VLAN 20.
struct Flooded {
    state: Arc<Mutex<State>>,
    frames: u64,
}

#[derive(Default)]
struct State {
    is_flooded: bool,
    /// Whether it can do what it is told.
    can: bool,
    told: Vec<Vec<Thinned>>,
}

impl Port for Flooded {
    fn features(&self) -> ports::Features {
        let pair = pair(FRAMES, OffloadSupport::ALL).0;
        ports::Features { offload: OffloadSupport::NONE, ..pair.features() }
    }

    fn fd(&self) -> Option<std::os::fd::BorrowedFd<'_>> {
        None
    }

    fn rx(&mut self, pool: &mut Pool, burst: usize, out: &mut Vec<Frame>) -> Result<usize, PortError> {
        if !self.state.lock().unwrap().is_flooded {
            pass_ns(50_000);
            return Ok(0);
        }
        for _ in 0..burst {
            self.frames += 1;
            let to = if self.frames.is_multiple_of(16) { 2 } else { 1 };
            let ip = |n| std::net::Ipv4Addr::new(10, 0, 0, n);
            let frame = build::eth(mac(9), mac(to)).vlan(10 * u16::from(to)).ipv4(ip(9), ip(to)).udp(1, 2);
            out.push(pool.alloc_from(&frame.bytes()).unwrap());
        }
        pass_ns(FRAME_NS * burst as u64);
        Ok(burst)
    }

    fn write(&mut self, _: &mut Pool, _: &Frame) -> Result<(), Refused> {
        Ok(())
    }

    fn waiting(&self) -> Option<Waiting> {
        Some(Waiting { bytes: 1 << 22, room: 1 << 24 })
    }

    fn thin(&mut self, thinned: &[Thinned]) -> bool {
        let mut state = self.state.lock().unwrap();
        state.told.push(thinned.to_vec());
        state.can
    }

    fn drops_before_us(&mut self) -> Result<u64, PortError> {
        Ok(0)
    }
}

/// A worker by hand with an uplink that is flooded, and two tenants with an endpoint each.
struct Bed {
    worker: Worker,
    far: Vec<PairPort>,
    pool: Pool,
    state: Arc<Mutex<State>>,
    _tasks: Receiver<Task>,
}

impl Bed {
    fn new(can: bool) -> Bed {
        let rate = Rate(10_000_000_000);
        let mut program = program(3);
        let attachments = [Attachment::Isolated, Attachment::Vlan(10), Attachment::Vlan(20)];
        program.tenants =
            attachments.into_iter().map(|attachment| Tenant { attachment, ..Tenant::default() }).collect();
        program.endpoints = (1..3u8)
            .map(|e| Endpoint {
                identity: Identity { macs: vec![mac(e)], ..Identity::default() },
                ..Endpoint::new(TenantId(e.into()), PortId(e.into()))
            })
            .collect();
        program.uplink = Some(Uplink::new(PortId(0), Both { egress: rate, ingress: rate }));
        READ_NS.set(by_hand_ns);
        let (near, far): (Vec<_>, Vec<_>) = (0..2).map(|_| pair(FRAMES, OffloadSupport::ALL)).unzip();
        let state = Arc::new(Mutex::new(State { is_flooded: true, can, told: Vec::new() }));
        let uplink: ports::AnyPort = Box::new(Flooded { state: Arc::clone(&state), frames: 0 });
        let ports = std::iter::once(uplink).chain(near.into_iter().map(|port| Box::new(Timed::new(port)) as _));
        let (_, inbox) = sync_channel(1);
        let (sender, tasks) = sync_channel(64);
        let parts = Parts {
            pool: Pool::new(PoolLimits::default()),
            switch_slots: vec![SwitchSlot::new(
                Switch::new(&program, 1).unwrap(),
                (0..3).map(|e| Some(Backing::Device(e))).collect(),
            )],
            link_slots: Vec::new(),
            devices: ports.zip(0..).map(|(port, number)| Device::new(port, 0, PortId(number))).collect(),
            spin: false,
            wake: Wake::new().unwrap(),
            clock: Clock::start(),
            inbox,
            tasks: sender,
        };
        let worker = Worker::new(parts).unwrap();
        Bed { worker, far, pool: Pool::new(PoolLimits::default()), state, _tasks: tasks }
    }

    /// Lets the worker work for so long.
    fn run(&mut self, ms: u64) {
        let end = self.worker.outside.look().plus_ns(ms * 1_000_000);
        while self.worker.outside.look() < end {
            self.worker.do_what_is_due();
            let is_turn = self.worker.take_a_turn();
            self.worker.pump();
            self.far.iter_mut().for_each(|far| _ = empty(far, &mut self.pool));
            if !is_turn {
                pass_ns(100_000);
            }
        }
    }

    fn told(&self) -> Vec<Vec<Thinned>> {
        std::mem::take(&mut self.state.lock().unwrap().told)
    }

    fn flood(&mut self, is_flooded: bool) {
        self.state.lock().unwrap().is_flooded = is_flooded;
    }

    fn is_thinned(&self) -> bool {
        self.worker.outside.devices[0].is_thinned
    }
}

#[test]
fn the_port_is_told_while_its_ring_fills_and_reads_all_afterwards() {
    let mut bed = Bed::new(true);
    bed.run(100);
    let told = bed.told();
    assert!((1..=10).contains(&told.len()) && bed.is_thinned(), "{told:?}");
    for list in &told {
        assert!(list.len() == 1 && list[0].to.vlan == Some(10) && list[0].to.mac == mac(1), "{list:?}");
    }
    let drops = bed.worker.switch_slots[0].switch.endpoint_stats(EndpointId(0)).drops;
    assert!(drops.get(Reason::UplinkShare) > 1_000, "{drops:?}");
    // Nothing comes any more.
    bed.flood(false);
    assert!(bed.worker.timeout().is_some_and(|ns| ns <= 10_000_000));
    bed.run(300);
    assert_eq!((bed.told().last(), bed.is_thinned()), (Some(&vec![]), false));
    bed.run(1_500);
    assert_eq!(bed.told(), [[]; 0], "once is enough");
    assert_eq!(bed.worker.switch_slots[0].switch.thinned_due(), None);
}

#[test]
fn who_takes_over_gets_a_port_that_reads_all() {
    let mut bed = Bed::new(true);
    bed.run(100);
    assert!(bed.is_thinned());
    bed.told();
    let (reply, states) = sync_channel(1);
    bed.worker.give_way(Vec::new(), &reply);
    assert_eq!(states.recv().unwrap().len(), 1);
    assert_eq!((bed.told(), bed.is_thinned()), (vec![vec![]], false));
}

#[test]
fn a_port_that_is_no_uplinks_any_more_reads_all() {
    let mut bed = Bed::new(true);
    bed.run(100);
    assert!(bed.is_thinned());
    bed.flood(false);
    bed.worker.begin(vec![Edit::Change(0, Change::Uplink(None))]).unwrap();
    bed.run(1_100);
    assert_eq!((bed.told().last(), bed.is_thinned()), (Some(&vec![]), false));
}

#[test]
fn a_port_that_cannot_is_asked_about_once_a_second() {
    let mut bed = Bed::new(false);
    bed.run(900);
    let told = bed.told();
    assert!(told.len() == 1 && !told[0].is_empty() && !bed.is_thinned(), "{told:?}");
    bed.run(1_000);
    assert_eq!(bed.told().len(), 1);
}
