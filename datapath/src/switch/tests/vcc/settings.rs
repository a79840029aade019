//! Who has it: a tenant's endpoints, and one that says otherwise; changed while connections are
//! open.

use super::*;
use crate::program::Change;
use crate::vcc::connection::Why;

impl Rig {
    fn set_tenant(&mut self, vcc: Settings) {
        let tenant = Tenant { vcc, ..self.switch.program().tenants[0].clone() };
        self.switch.change(&mut self.pool, self.now, Change::Tenant(TenantId(0), Some(tenant))).expect("it fits");
    }

    fn set_endpoint(&mut self, id: u32, edit: impl FnOnce(&mut Endpoint)) {
        let mut endpoint = self.switch.program().endpoints[id as usize].clone();
        edit(&mut endpoint);
        self.switch
            .change(&mut self.pool, self.now, Change::Endpoint(EndpointId(id), Some(endpoint)))
            .expect("it fits");
    }

    fn modes(&self) -> [Mode; 2] {
        [0, 1].map(|endpoint| self.switch.vcc().mode(EndpointId(endpoint)))
    }

    fn count_open(&self, endpoint: u32) -> u32 {
        self.switch.vcc().connections().count(EndpointId(endpoint), Class::Open)
    }
}

#[test]
fn an_endpoint_says_otherwise_than_its_tenant() {
    let mut rig = Rig::new(&[Attachment::Vlan(10)], &[(0, 1), (0, 2)], |program| {
        program.endpoints[0].vcc = Some(Mode::Echo.into());
    });
    assert_eq!(rig.modes(), [Mode::Echo, Mode::Off]);
    let (_, _, syn) = rig.explained(1, &tcp((1, 7), (2, 80), SYN, (99, 0)));
    assert_eq!(shown(&syn), (codes::ASK_ACCURATE, ecn::ECT0), "it is asked for");
    let (_, _, answer) = rig.explained(2, &tcp((2, 80), (1, 7), SYN | ACK, (499, 100)));
    assert_eq!(shown(&answer), (codes::NONE, ecn::NOT), "nobody speaks for the other");
    assert!(rig.switch.vcc().counters(EndpointId(1)).is_none());

    let mut rig = Rig::new(&[Attachment::Vlan(10)], &[(0, 1), (0, 2)], |program| {
        program.tenants[0].vcc = Mode::Echo.into();
        program.endpoints[1].vcc = Some(Mode::Off.into());
    });
    assert_eq!(rig.modes(), [Mode::Echo, Mode::Off]);
    let (_, _, syn) = rig.explained(2, &tcp((2, 7), (1, 80), SYN, (99, 0)));
    assert_eq!(shown(&syn), (codes::NONE, ecn::NOT), "its own SYN is left alone");
}

#[test]
fn a_change_of_either_holds_at_once_and_one_that_says_otherwise_does_not_follow() {
    let mut rig = neighbours(Mode::Echo);
    rig.shake();
    assert_eq!([0, 1].map(|endpoint| rig.count_open(endpoint)), [1, 1]);
    rig.set_endpoint(0, |one| one.vcc = Some(Settings { polices: true, ..Mode::Dctcp.into() }));
    assert_eq!(rig.modes(), [Mode::Dctcp, Mode::Echo]);
    rig.set_tenant(Mode::EchoPublished.into());
    assert_eq!(rig.modes(), [Mode::Dctcp, Mode::EchoPublished]);
    assert_eq!([0, 1].map(|endpoint| rig.count_open(endpoint)), [1, 1], "connections stay");

    rig.set_tenant(Mode::Off.into());
    assert_eq!(
        (rig.modes(), rig.count_open(0), rig.count_open(1)),
        ([Mode::Dctcp, Mode::Off], 1, 0),
        "those of one are forgotten"
    );
    rig.set_tenant(Mode::Count.into());
    assert_eq!(rig.modes(), [Mode::Dctcp, Mode::Count]);
    // What has nothing to do with it changes nothing of it.
    rig.set_endpoint(0, |one| one.queue_bytes /= 2);
    assert_eq!((rig.modes(), rig.count_open(0)), ([Mode::Dctcp, Mode::Count], 1));
    rig.set_endpoint(0, |one| one.vcc = Some(Mode::Off.into()));
    assert_eq!((rig.modes(), rig.count_open(0)), ([Mode::Off, Mode::Count], 0));
    rig.set_endpoint(0, |one| one.vcc = None);
    assert_eq!(rig.modes(), [Mode::Count; 2], "from now on it follows its tenant");
    rig.set_tenant(Mode::Echo.into());
    assert_eq!(rig.modes(), [Mode::Echo; 2]);
    rig.set_endpoint(0, |one| {
        one.trunk = true;
        one.identity = Identity::default();
    });
    assert_eq!(rig.modes(), [Mode::Off, Mode::Echo]);
}

#[test]
fn what_another_mode_does_not_know_is_not_asked_of_it() {
    let all = Settings {
        polices: true,
        holds: true,
        strips_multipath: true,
        ignores_loss: true,
        passes_classic: true,
        ..Mode::Dctcp.into()
    };
    let of = |mode: Mode| {
        let Settings { polices, holds, strips_multipath, ignores_loss, passes_classic, .. } = all.with_mode(mode);
        [polices, holds, strips_multipath, ignores_loss, passes_classic]
    };
    let (none, echo, published) = ([false; 5], [true, false, true, true, true], [false, false, true, false, true]);
    assert_eq!(Mode::ALL.map(of), [none, none, echo, published, [true; 5]]);
}

#[test]
fn the_table_grows_and_shrinks_and_no_connection_that_is_open_goes() {
    const LEAST: u32 = crate::vcc::LEAST_FLOWS;
    let mut rig = Rig::new(&[Attachment::Vlan(10)], &[(0, 1), (0, 2)], |program| {
        program.flows = Some(LEAST);
        program.endpoints[0].vcc = Some(Mode::Echo.into());
    });
    assert_eq!(rig.switch.vcc().connections().most(), LEAST);
    let connect = |rig: &mut Rig, ports: std::ops::Range<u16>| {
        for port in ports {
            rig.send(1, &tcp((1, port), (2, 80), SYN, (99, 0)));
            rig.send(2, &tcp((2, 80), (1, port), SYN | ACK | tcp_flags::ECE, (499, 100)));
        }
        (rig.count_open(0), rig.counted(0).untouched[Why::Full as usize])
    };
    // One endpoint has as many as it leaves free twice.
    assert_eq!(connect(&mut rig, 1000..1400), (LEAST / 3 + 1, 400 - u64::from(LEAST / 3 + 1)));
    let full = 400 - u64::from(LEAST / 3 + 1);
    let set = |rig: &mut Rig, most| {
        rig.switch.change(&mut rig.pool, rig.now, Change::Flows(most)).expect("it fits");
        while rig.switch.is_sweeping() {
            rig.switch.sweep();
        }
    };
    set(&mut rig, 4 * LEAST);
    assert_eq!(connect(&mut rig, 2000..2400), (LEAST / 3 + 1 + 400, full));
    set(&mut rig, LEAST);
    assert_eq!(connect(&mut rig, 3000..3010), (LEAST / 3 + 1 + 400, full + 10), "nobody goes, and nobody comes");
    // Each that was there is found.
    for port in (1000..1000 + LEAST as u16 / 3).chain(2000..2400) {
        let (said, _, bytes) = rig.explained(1, &tcp((1, port), (2, 80), ACK, (100, 500)).payload(vec![1; 10]));
        assert_eq!(shown(&bytes).1, ecn::ECT0, "{port}: {said}");
    }
    let before = rig.switch.program().clone();
    let after = Program { flows: None, rescales: true, ..before.clone() };
    let changes = vec![Change::Flows(crate::vcc::DEFAULT_FLOWS), Change::Rescale(true)];
    assert_eq!(after.changes_from(&before), Some(changes.clone()));
    for change in changes {
        rig.switch.change(&mut rig.pool, rig.now, change).expect("it fits");
    }
    let program = rig.switch.program();
    assert_eq!((program.flows, program.rescales), (Some(crate::vcc::DEFAULT_FLOWS), true));
}

#[test]
fn a_longer_table_is_made_a_part_at_a_time() {
    let mut rig = neighbours(Mode::Echo);
    let most = |rig: &Rig| rig.switch.vcc().connections().most();
    let before = most(&rig);
    rig.switch.change(&mut rig.pool, rig.now, Change::Flows(1 << 20)).expect("it fits");
    let mut calls = 0;
    while rig.switch.is_sweeping() {
        assert_eq!(most(&rig), before);
        rig.switch.sweep();
        calls += 1;
    }
    assert_eq!((most(&rig), before < 1 << 20, calls > 300), (1 << 20, true, true), "{calls} calls");
    // Who is the first to have it waits for no table either.
    let mut rig = neighbours(Mode::Off);
    rig.switch.change(&mut rig.pool, rig.now, Change::Flows(1 << 20)).expect("it fits");
    assert!(!rig.switch.is_sweeping(), "nobody has any");
    rig.set_tenant(Mode::Echo.into());
    assert_eq!((most(&rig), rig.switch.is_sweeping()), (4096, true));
}
