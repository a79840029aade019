//! Snapshots of many endpoints, made in many rounds, against what the switch itself says.

use super::*;
use crate::worker::answer::{Answer, answer};
use crate::worker::{Clock, Edit, Edits, Parts, Request, Task, Wake};
use datapath::frame::Pool;
use datapath::guard::Identity;
use datapath::link::LinkConfig;
use datapath::program::{Change, Endpoint, PortId};
use datapath::switch::Switch;
use datapath::wire::{Mac, build};
use std::net::Ipv4Addr;
use std::sync::mpsc::{Receiver, sync_channel};
use std::time::Duration;

/// So many that one round is not enough on the fastest machine, at 1 ns for each.
const ENDPOINTS: u32 = 60_000;

fn mac(port: PortId) -> Mac {
    let [_, _, high, low] = port.0.to_be_bytes();
    Mac([2, 0, 0, 0, high, low])
}

/// A worker that runs only as far as a test lets it, with one switch of so many endpoints of three
/// tenants behind a slow uplink.
fn worker(endpoints: u32) -> (Worker, Plan, Receiver<Task>) {
    let head = "[daemon]\nname = \"t\"\n[[switch]]\nname = \"s1\"\n[switch.uplink]\nport = \"tap://up\"\nrate = \"1 Mbit/s\"\n";
    let tenant = "[[switch.tenant]]\nname = \"t0\"\nvlan = \"untagged\"\n[[switch.tenant.endpoint]]\nname = \"e0\"\nport = \"tap://e0\"\n";
    let mut plan = control::load(&format!("{head}{tenant}")).plan.unwrap();
    let switch = &mut plan.switches[0];
    let (tenant, endpoint) = (switch.program.tenants[0].clone(), switch.program.endpoints[0].clone());
    for _ in 1..3 {
        switch.program.tenants.push(tenant.clone());
    }
    switch.program.endpoints[0].identity.macs = vec![mac(endpoint.port)];
    for e in 1..endpoints {
        let port = PortId(switch.program.ports.push(switch.program.ports[0]));
        let (tenant, identity) = (TenantId(e % 3), Identity { macs: vec![mac(port)], ..Identity::default() });
        switch.program.endpoints.push(Endpoint { port, tenant, identity, ..endpoint.clone() });
    }
    let wake = Wake::new().unwrap();
    let (_, inbox) = sync_channel(1);
    let (sender, tasks) = sync_channel(16);
    let parts = Parts {
        pool: Pool::new(PoolLimits::default()),
        switch_slots: vec![SwitchSlot::new(Switch::new(&switch.program, 1).unwrap(), Vec::new())],
        link_slots: (0..20).map(|_| LinkSlot::new(LinkConfig::default(), [(0, PortId(0)); 2])).collect(),
        devices: Vec::new(),
        spin: false,
        wake,
        clock: Clock::start(),
        inbox,
        tasks: sender,
    };
    (Worker::new(parts).unwrap(), plan, tasks)
}

/// Three hundred endpoints, or all, send something to the uplink, most of which waits.
fn send(worker: &mut Worker) {
    let now = worker.outside.look();
    let (pool, switch) = (&mut worker.pool, &mut worker.switch_slots[0].switch);
    let program = switch.program();
    let every = (program.endpoints.len() / 300).max(1);
    let ports: Vec<PortId> = program.endpoints.iter().step_by(every).map(|(_, endpoint)| endpoint.port).collect();
    for port in ports {
        let frame = build::eth(mac(port), Mac([2, 1, 0, 0, 0, 1]))
            .ipv4(Ipv4Addr::new(10, 0, 0, 1), Ipv4Addr::new(10, 1, 0, 1))
            .udp(1, 2)
            .payload(vec![0; 400])
            .bytes();
        let frame = pool.alloc_from(&frame).unwrap();
        switch.rx(pool, now, port, frame);
    }
    let frame = pool.alloc_from(&[0; 60]).unwrap();
    worker.outside.link_slots[13].as_mut().unwrap().link.send(pool, now, Side::B, frame);
    // One takes 4 ms.
    std::thread::sleep(Duration::from_millis(5));
    let now = worker.outside.look();
    if let Some((_, frame)) = worker.switch_slots[0].switch.tx(&mut worker.pool, now) {
        worker.pool.free(frame);
    }
}

fn ask(worker: &mut Worker, plan: &Plan) -> Answer<Box<Snapshot>> {
    let (reply, answer) = answer();
    let mut into = Box::<Snapshot>::default();
    into.make_room(plan);
    worker.carry_out(Request::Snapshot { into, reply });
    answer
}

fn assert_right(worker: &Worker, shot: &Snapshot) {
    let (switch, numbers) = (&worker.switch_slots[0].switch, &shot.switches[0]);
    assert_eq!(numbers.endpoints.len(), switch.program().endpoints.len());
    assert!(numbers.endpoints.iter().any(|stats| stats.egress.backlog_bytes > 0), "something waits");
    for (id, stats) in numbers.endpoints.iter().enumerate() {
        assert_eq!(*stats, switch.endpoint_stats(EndpointId(id as u32)));
    }
    for (id, stats) in numbers.tenants.iter().enumerate() {
        assert_eq!(*stats, switch.tenant_stats(TenantId(id as u32)));
    }
    let link_slots = worker.outside.link_slots.iter().flatten();
    let links: Vec<_> = link_slots.map(|link_slot| Side::ALL.map(|side| link_slot.link.stats(side))).collect();
    assert_eq!(shot.links, links);
    assert_ne!(links[13], links[12]);
    let tenants = switch.program().tenants.len();
    assert_eq!((numbers.tenants.len(), numbers.uplink), (tenants, switch.uplink_stats()));
    assert!(numbers.uplink.egress.traffic.frames > 0 && numbers.uplink.egress.backlog_frames > 0);
}

#[test]
fn few_are_copied_in_one_round_and_many_in_many_and_the_sums_are_right() {
    let (mut one, plan, _chores) = worker(3);
    send(&mut one);
    let (answer, mut rounds) = (ask(&mut one, &plan), 0);
    while one.has_counts() {
        one.count();
        rounds += 1;
    }
    // The machine may take the processor away in the middle.
    assert!(rounds < 10, "{rounds}");
    assert_right(&one, &answer.wait(Duration::ZERO).unwrap());
    let (mut many, plan, _chores) = worker(ENDPOINTS);
    send(&mut many);
    let answer = ask(&mut many, &plan);
    assert!(many.has_counts() && answer.wait(Duration::ZERO).is_none());
    let (start, mut rounds, mut longest) = (many.outside.look(), 0, 0);
    while many.has_counts() {
        let before = many.outside.look();
        many.count();
        longest = many.outside.look().since(before).max(longest);
        rounds += 1;
    }
    let shot = answer.wait(Duration::ZERO).unwrap();
    assert!(rounds > 1 && shot.span_ns > 0);
    assert_right(&many, &shot);
    // Shown with --nocapture: what it takes depends on the machine.
    let took = many.outside.look().since(start);
    println!("{ENDPOINTS} endpoints in {rounds} rounds, the longest {} us of {} us", longest / 1000, took / 1000);
}

#[test]
fn a_change_begins_a_snapshot_anew_and_a_worker_that_gives_way_finishes_it() {
    let (mut worker, plan, _chores) = worker(ENDPOINTS);
    send(&mut worker);
    let answer = ask(&mut worker, &plan);
    worker.count();
    assert!(answer.wait(Duration::ZERO).is_none(), "only a part is copied");
    // The first has been copied; what it has queued goes with it.
    let (reply, edited) = sync_channel(1);
    let gone = Edit::Change(0, Change::Endpoint(EndpointId(0), None));
    worker.carry_out(Request::Edit(Edits::new(vec![gone], reply)));
    worker.edit();
    assert_eq!(edited.try_recv().unwrap().failed, None);
    worker.count_all();
    let shot = answer.wait(Duration::ZERO).unwrap();
    assert_eq!(shot.switches[0].endpoints[0], EndpointStats::default());
    assert_right(&worker, &shot);
}

#[test]
fn what_a_tenant_sent_that_is_gone_stays_in_the_uplinks_numbers() {
    let (mut worker, plan, _chores) = worker(3);
    send(&mut worker);
    let (pool, switch, now) = (&mut worker.pool, &mut worker.switch_slots[0].switch, worker.outside.now);
    let before = switch.uplink_stats().egress.traffic;
    let sent = |id: &u32| switch.tenant_stats(TenantId(*id)).egress.traffic.frames > 0;
    let tenant = (0..3).find(sent).expect("one has sent something");
    switch.change(pool, now, Change::Endpoint(EndpointId(tenant), None)).unwrap();
    switch.change(pool, now, Change::Tenant(TenantId(tenant), None)).unwrap();
    let answer = ask(&mut worker, &plan);
    worker.count_all();
    let shot = answer.wait(Duration::ZERO).unwrap();
    assert_eq!(shot.switches[0].uplink.egress.traffic, before);
    assert_right(&worker, &shot);
}

#[test]
fn snapshots_are_made_and_lists_of_changes_done_however_fast_both_are_asked_for() {
    // A round may be short on a slow machine, and all are to take more than one.
    let (mut worker, plan, _chores) = worker(3_000);
    let (mut answers, mut edited) = (vec![ask(&mut worker, &plan), ask(&mut worker, &plan)], Vec::new());
    let (mut snapshots, mut done, mut lists, mut longest) = (0, 0, 0, 0);
    for _ in 0..100_000 {
        if snapshots >= 6 {
            break;
        }
        // There is always another list, and another who looks.
        if worker.edits.len() < 2 {
            let (reply, answer) = sync_channel(1);
            worker.carry_out(Request::Edit(Edits::new(Vec::new(), reply)));
            edited.push(answer);
        }
        worker.work_for_itself();
        let before = (answers.len(), edited.len());
        answers.retain(|answer| answer.wait(Duration::ZERO).is_none());
        edited.retain(|edited| edited.try_recv().is_err());
        let new = (before.0 - answers.len(), before.1 - edited.len());
        (snapshots, done, lists) = (snapshots + new.0, done + new.1, lists + new.1);
        longest = longest.max(lists);
        if new.0 > 0 {
            lists = 0;
            answers.push(ask(&mut worker, &plan));
        }
    }
    assert!(snapshots >= 6, "{snapshots} beside {done} lists");
    assert!(done >= 6 && longest <= 2 * LISTS as usize, "{done} lists, {longest} of them between two snapshots");
}

#[test]
fn a_snapshot_that_nobody_waits_for_any_more_is_not_made_and_freed_by_others() {
    let (mut worker, plan, chores) = worker(ENDPOINTS);
    let unwanted = || chores.try_iter().filter(|task| matches!(task, Task::Unwanted(_))).count();
    drop(ask(&mut worker, &plan));
    drop(ask(&mut worker, &plan));
    let wanted = ask(&mut worker, &plan);
    assert_eq!((worker.counts.len(), unwanted()), (1, 2));
    worker.count();
    assert!(wanted.wait(Duration::ZERO).is_none(), "it takes many rounds");
    drop(wanted);
    worker.count();
    assert_eq!((worker.counts.len(), unwanted()), (0, 1));
}
