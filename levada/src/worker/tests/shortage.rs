//! Who is said to be short of the processor, and where nobody is.

use super::*;
use datapath::program::{Share, Uplink};
use datapath::units::{Both, Rate};

/// How often a shortage of a switch is handed on, in nanoseconds.
const SAID_NS: u64 = 10_000_000_000;

/// A worker by hand, of which a time between two looks is played.
struct Played {
    worker: Worker,
    far: Vec<PairPort>,
    tasks: Receiver<Task>,
    pool: Pool,
}

impl Played {
    fn new() -> Played {
        let (worker, far, tasks) = by_hand();
        Played { worker, far, tasks, pool: Pool::new(PoolLimits::default()) }
    }

    fn begin(&mut self, edits: Vec<Edit>) {
        self.worker.begin(edits).unwrap();
    }

    /// The ports `from` have more to send than the worker takes, rings of `lost` overflow, and the
    /// worker has no time left or has.
    fn play(&mut self, from: &[u8], lost: &[usize], is_busy: bool) {
        let Played { worker, far, pool, .. } = self;
        // The looks are by hand too, and others' ports are not asked.
        worker.events_due = Instant(u64::MAX);
        worker.polled = from.iter().map(|&port| port.into()).collect();
        (0..4).for_each(|port| worker.seats.sleep(Backing::Device(port)));
        let begin = worker.outside.look();
        worker.look_for_shortage();
        (0..2000).for_each(|_| overloaded_turn(worker, far, pool, from));
        for &device in lost {
            worker.carry_out(Request::Drops { device, frames: 1, are_unread: true });
        }
        let end = worker.outside.look();
        worker.effort.busy_ns += if is_busy { end.since(begin) } else { end.since(begin) / 2 };
        worker.look_for_shortage();
    }

    /// Who was short since this was asked last: of the uplink and both tenants.
    fn newly_short(&self, before: &mut [u64; 3]) -> [bool; 3] {
        let who = [None, Some(TenantId(0)), Some(TenantId(1))];
        let now = who.map(|who| self.worker.look.short_ns(0, who));
        let then = std::mem::replace(before, now);
        [0, 1, 2].map(|at| now[at] > then[at])
    }

    /// Shortages that were handed on: who was short, and who used most.
    fn told(&self) -> Vec<(Vec<Option<TenantId>>, Option<TenantId>)> {
        let told = self.tasks.try_iter().filter_map(|task| match task {
            Task::Shortage(shortage) => {
                let Shortage { switch, short, count, users } = *shortage;
                assert_eq!((switch, count), (0, short.len()));
                Some((short, users[0].0))
            }
            _ => None,
        });
        told.collect()
    }
}

fn rate() -> Both<Rate> {
    Both { egress: Rate(1_000_000_000), ingress: Rate(1_000_000_000) }
}

#[test]
fn shortage_of_what_comes_from_the_uplink_is_the_uplinks() {
    let mut played = Played::new();
    let claim = Claim { switch: 0, payer: Payer::Uplink, tenant_weight: 1, weight: 1 };
    played.begin(vec![
        Edit::Change(0, Change::Endpoint(EndpointId(0), None)),
        Edit::Change(0, Change::Uplink(Some(Uplink::new(PortId(0), rate())))),
        Edit::Claims(vec![(Backing::Device(0), claim)]),
    ]);
    let mut before = [0; 3];
    played.play(&[0], &[], true);
    assert_eq!(played.newly_short(&mut before), [false; 3], "all of it is read");
    played.play(&[0], &[0], false);
    assert_eq!(played.newly_short(&mut before), [false; 3], "a burst that the ring did not hold");
    assert!(played.told().is_empty());
    played.play(&[0], &[0], true);
    assert_eq!(played.newly_short(&mut before), [true, false, false]);
    assert_eq!(played.told(), [(vec![None], None)]);
    // Beside a tenant that takes all it gets, it waits as one does.
    played.play(&[0, 2], &[], true);
    assert_eq!(played.newly_short(&mut before), [true, false, true]);
    // What is a guest's own loss is not the uplink's.
    played.play(&[0], &[2], true);
    assert_eq!(played.newly_short(&mut before), [false; 3]);
}

#[test]
fn shortage_of_one_that_is_alone_is_what_its_rings_lose_of_a_guarantee() {
    let mut played = Played::new();
    let mut before = [0; 3];
    played.play(&[0], &[0], true);
    assert_eq!(played.newly_short(&mut before), [false; 3], "it is promised nothing");
    let share = Both { egress: Share { guarantee: rate().egress, ..Share::default() }, ingress: Share::default() };
    played.begin(vec![Edit::Change(0, Change::Tenant(TenantId(0), Some(Tenant { share, ..Tenant::default() })))]);
    played.play(&[0], &[], true);
    assert_eq!(played.newly_short(&mut before), [false; 3], "nothing is lost");
    played.play(&[0], &[0], false);
    assert_eq!(played.newly_short(&mut before), [false; 3], "a burst that the ring did not hold");
    played.play(&[2], &[0], true);
    assert_eq!(played.newly_short(&mut before), [false; 3], "most of the time nothing of it was there");
    assert!(played.told().is_empty());
    played.play(&[0], &[0], true);
    assert_eq!(played.newly_short(&mut before), [false, true, false]);
    assert_eq!(played.told(), [(vec![Some(TenantId(0))], Some(TenantId(0)))]);
}

#[test]
fn shortage_that_lasts_is_handed_on_each_ten_seconds() {
    let mut played = Played::new();
    let both = [0, 1].map(|tenant| Some(TenantId(tenant))).to_vec();
    for (passed_ns, lines) in [(0, 1), (0, 0), (SAID_NS / 2, 0), (SAID_NS / 2, 1), (0, 0)] {
        pass_ns(passed_ns);
        played.play(&[0, 2], &[], true);
        let told = played.told();
        assert_eq!(told.len(), lines, "{passed_ns} ns later");
        assert!(told.iter().all(|(short, _)| *short == both));
    }
}

#[test]
fn who_has_the_number_of_a_tenant_that_was_short_was_not() {
    let (mut worker, mut far, _chores) = by_hand();
    let mut pool = Pool::new(PoolLimits::default());
    pass_ns(1);
    worker.outside.look();
    worker.look_for_shortage();
    for _ in 0..20_000 {
        overloaded_turn(&mut worker, &mut far, &mut pool, &[0, 2]);
    }
    worker.effort.busy_ns += worker.outside.now.0;
    worker.look_for_shortage();
    let short = |worker: &Worker| [0, 1].map(|tenant| worker.look.short_ns(0, Some(TenantId(tenant))) > 0);
    assert_eq!(short(&worker), [true, true]);
    let change = |change| Edit::Change(0, change);
    let edits = [2, 3].map(|endpoint| change(Change::Endpoint(EndpointId(endpoint), None))).into_iter();
    let tenant = |tenant| change(Change::Tenant(TenantId(1), tenant));
    worker.begin(edits.chain([tenant(None), tenant(Some(Tenant::default()))]).collect()).unwrap();
    assert_eq!(short(&worker), [true, false]);
    worker.begin(vec![Edit::Switch(0, Box::new(Switch::new(&program(2), 1).unwrap()))]).unwrap();
    assert_eq!(short(&worker), [false, false]);
}
