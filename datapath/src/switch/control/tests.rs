//! Control frames reach protocols and those alone, and what protocols send and want is done.

use crate::frame::{Frame, Pool};
use crate::pair::Toward;
use crate::program::{Change, EndpointId, PortId};
use crate::protocol::{Command, Protocol, Protocols};
use crate::switch::Switch;
use crate::switch::chaos::{MBIT, MS, OUTSIDE, Rig, endpoint, mac, program, udp, uplink_at};
use crate::units::{Instant, Rate};
use crate::verdict::{Reason, Verdict};
use crate::wire::Mac;
use crate::wire::build::{Build, eth};

/// IEEE 802.3, annex 57A: slow protocols, link aggregation among them.
const SLOW: Mac = Mac([1, 0x80, 0xc2, 0, 0, 2]);
const SLOW_TYPE: u16 = 0x8809;
const MARK: u8 = 7;

fn slow(mark: u8) -> Build<'static> {
    eth(mac(OUTSIDE), SLOW).ethertype(SLOW_TYPE).payload(vec![mark; 50])
}

/// Answers each frame of its own by the same port once, a millisecond later; limits an endpoint
/// when a port has no carrier.
#[derive(Debug, Default)]
struct Answers {
    due: Option<(Instant, PortId)>,
    frames: Vec<(PortId, Vec<u8>)>,
    commands: Vec<Command>,
}

impl Protocol for Answers {
    fn rx(&mut self, now: Instant, port: PortId, frame: &[u8]) -> bool {
        let is_own = frame[14] == MARK;
        if is_own {
            self.due = Some((now.plus_ns(MS), port));
        }
        is_own
    }

    fn carrier(&mut self, _now: Instant, _port: PortId, is_up: bool) {
        let rate = (!is_up).then_some(Rate(MBIT));
        self.commands.push(Command::Limit { from: EndpointId(0), to: Toward::Everyone, rate, phase: None });
        // An endpoint that is not there: the switch refuses, and nothing else happens.
        self.commands.push(Command::Change(Box::new(Change::Endpoint(EndpointId(9), None))));
    }

    fn advance(&mut self, now: Instant, _switch: &mut Switch) {
        if let Some((_, port)) = self.due.take_if(|(due, _)| *due <= now) {
            self.frames.push((port, slow(MARK + 1).bytes()));
        }
    }

    fn poll_timeout(&self) -> Option<Instant> {
        self.due.map(|(due, _)| due)
    }

    fn poll_tx(&mut self, pool: &mut Pool) -> Option<(PortId, Frame)> {
        let (port, bytes) = self.frames.pop()?;
        Some((port, pool.alloc_from(&bytes)?))
    }

    fn poll_command(&mut self) -> Option<Command> {
        self.commands.pop()
    }
}

fn rig() -> (Rig, Protocols) {
    let mut protocols = Protocols::default();
    protocols.add(Box::<Answers>::default());
    (Rig::new(&program(&[endpoint(0, 0)])), protocols)
}

fn dropped(rig: &Rig, reason: Reason) -> u64 {
    rig.switch.uplink_drops().get(reason)
}

#[test]
fn reserved_frames_from_the_uplink_are_for_protocols_where_there_are_some() {
    let (mut rig, mut protocols) = rig();
    assert_eq!(rig.rx(0, &slow(MARK)), Verdict::Dropped(Reason::Reserved), "nobody listens");
    rig.switch.listen(&mut rig.pool, true);
    assert_eq!(rig.rx(0, &slow(MARK)), Verdict::Forwarded);
    assert_eq!(rig.rx(0, &slow(0)), Verdict::Forwarded);
    assert_eq!(rig.rx(1, &slow(MARK)), Verdict::Dropped(Reason::Reserved), "an endpoint's are its own matter");
    assert!(!protocols.run(&mut rig.pool, rig.now, &mut rig.switch), "nothing is due yet");
    assert_eq!((dropped(&rig, Reason::Reserved), rig.pool.in_use()), (2, 0), "what nobody takes is dropped");
    let due = protocols.poll_timeout().expect("an answer is due");
    assert_eq!(due, rig.now.plus_ns(MS));
    rig.now = due;
    assert!(protocols.run(&mut rig.pool, rig.now, &mut rig.switch));
    assert_eq!(rig.due(), [(0, slow(MARK + 1).bytes())]);
    assert_eq!((protocols.poll_timeout(), rig.pool.in_use()), (None, 0));
}

#[test]
fn what_waits_for_protocols_is_bounded_and_goes_with_its_port() {
    let (mut rig, _) = rig();
    rig.switch.listen(&mut rig.pool, true);
    for _ in 0..super::MOST {
        assert_eq!(rig.rx(0, &slow(MARK)), Verdict::Forwarded);
    }
    assert_eq!(rig.rx(0, &slow(MARK)), Verdict::Dropped(Reason::ControlFull));
    assert_eq!(rig.rx(0, &udp(OUTSIDE, 0, vec![0; 100]).vlan(10)), Verdict::Forwarded, "other frames pass");
    rig.change(Change::Uplink(Some(uplink_at(5, 100)))).unwrap();
    assert_eq!(dropped(&rig, Reason::Removed), super::MOST as u64);
    rig.rx(5, &slow(MARK));
    rig.switch.listen(&mut rig.pool, false);
    assert_eq!((dropped(&rig, Reason::Removed), rig.switch.poll_control()), (super::MOST as u64 + 1, None));
}

#[test]
fn commands_are_done_and_those_that_do_not_fit_harm_nothing() {
    let (mut rig, mut protocols) = rig();
    for is_up in [false, true] {
        protocols.carrier(rig.now, PortId(0), is_up);
        assert!(protocols.run(&mut rig.pool, rig.now, &mut rig.switch));
        assert_eq!(rig.switch.pairs(EndpointId(0)).count(), usize::from(!is_up));
    }
}

#[test]
fn a_protocol_sends_only_what_a_port_takes() {
    let (mut rig, _) = rig();
    let long = slow(MARK).payload(vec![0; 1600]);
    for (port, frame, reason) in [(9, slow(MARK), Reason::Unknown), (0, long, Reason::TooLong)] {
        let frame = frame.frame(&mut rig.pool).expect("a buffer");
        rig.switch.send_control(&mut rig.pool, PortId(port), frame);
        assert_eq!((dropped(&rig, reason), rig.pool.in_use()), (1, 0));
    }
}
