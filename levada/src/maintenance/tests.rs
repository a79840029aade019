//! Maintenance itself, without a daemon.

use super::listen::Folded;
use super::*;
use crate::system::log::Format;
use crate::worker::Wake;
use datapath::bond::Plain;
use datapath::frame::{Frame, Pool};
use ports::packet::PacketOptions;
use ports::pair::{PairPort, pair};
use ports::{Port, Refused};
use std::os::fd::BorrowedFd;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::sync_channel;
use std::thread;

/// A port that is slow to ask, as interfaces are.
struct Slow(PairPort);

impl Port for Slow {
    fn features(&self) -> Features {
        self.0.features()
    }

    fn line(&self) -> InterfaceStatus {
        InterfaceStatus { has_carrier: Some(true), ..InterfaceStatus::default() }
    }

    fn fd(&self) -> Option<BorrowedFd<'_>> {
        None
    }

    fn rx(&mut self, pool: &mut Pool, burst: usize, out: &mut Vec<Frame>) -> Result<usize, PortError> {
        self.0.rx(pool, burst, out)
    }

    fn write(&mut self, pool: &mut Pool, frame: &Frame) -> Result<(), Refused> {
        self.0.write(pool, frame)
    }

    fn drops_before_us(&mut self) -> Result<u64, PortError> {
        thread::sleep(Duration::from_millis(1));
        Ok(0)
    }
}

/// As long as a queue is full of them, a lost device is tried again all the same: each time that
/// it still is not there for another reason is told.
#[test]
fn a_lost_device_is_tried_again_however_often_interfaces_change() {
    let plan = control::load("[daemon]\nname = \"t\"\n[[switch]]\nname = \"s1\"\n").plan.unwrap();
    let wake = Wake::new().unwrap();
    let (inbox, _orders) = sync_channel(64);
    let (news, heard) = sync_channel(64);
    let (tasks, errands) = sync_channel(64);
    let log = Log::new("t", Format::default());
    let maintenance = Maintenance::new(plan.empty(), log, inbox, wake.waker(), news, tasks.clone(), Sights::default());
    let options = PacketOptions { name: "levada-none".to_owned(), netns: None, room: None, is_exclusive: false };
    let reopen = Reopen {
        recipe: Some(Recipe::Packet(options, 1500)),
        label: "packet://levada-none of s1/uplink".to_owned(),
        lost: Some("it was deleted".to_owned()),
        once: None,
    };
    let (done, _) = sync_channel(1);
    let (slow, _far) = pair(1, OffloadSupport::NONE);
    let slow: AnyPort = Box::new(Slow(slow));
    let other = Reopen { recipe: None, label: "another".to_owned(), lost: None, once: None };
    let new = vec![(0, reopen, None), (1, other, Some(slow))];
    tasks.send(Task::Devices { plan: Arc::new(plan), gone: Vec::new(), new, done }).unwrap();
    let is_over = AtomicBool::new(false);
    thread::scope(|scope| {
        scope.spawn(move || maintenance.run(&errands));
        scope.spawn(|| {
            while !is_over.load(Ordering::Relaxed) {
                tasks.send(Task::Links).unwrap();
            }
            tasks.send(Task::Stop).unwrap();
        });
        let told = [(); 2].map(|()| heard.recv_timeout(Duration::from_secs(5)).is_ok());
        is_over.store(true, Ordering::Relaxed);
        assert_eq!(told, [true; 2], "that it is lost, and that it cannot be opened");
    });
}

#[test]
fn of_tasks_that_say_the_same_one_waits_and_the_others_have_their_places() {
    let (tasks, errands) = sync_channel(2);
    let links = Folded::default();
    (0..1000).for_each(|_| links.send(&tasks, Task::Links));
    assert!(tasks.try_send(Task::Placed).is_ok(), "there is room");
    assert_eq!(errands.try_iter().filter(|task| matches!(task, Task::Links)).count(), 1);
    // What changes while it is looked is looked for again, also where the queue was full meanwhile.
    links.is_taken();
    (0..2).for_each(|_| tasks.try_send(Task::Placed).unwrap());
    links.send(&tasks, Task::Links);
    errands.try_iter().for_each(drop);
    links.send(&tasks, Task::Links);
    assert!(matches!(errands.try_recv(), Ok(Task::Links)));
}

/// What the log warns of, word for word.
#[test]
fn what_is_wrong_with_a_bond_is_a_warning_that_names_the_member() {
    let member = |n: u8| format!("[[switch.uplink.bond.member]]\nport = \"packet://up{n}\"\nrate = \"1 Gbit/s\"\n");
    let text = format!(
        "[daemon]\nname = \"t\"\n[[switch]]\nname = \"s1\"\n[switch.uplink.bond]\nmode = \"balance-rr\"\n{}{}",
        member(0),
        member(1)
    );
    let plan = control::load(&text).plan.unwrap();
    let said = |news| line_of_bond(plan.switches.get(0).unwrap(), news).unwrap();
    let churns = "s1/uplink/up1: this end has been out of sync for a minute (churn); compare both ends' keys, speeds and modes: levada show bonds";
    for (news, wanted) in [
        (BondNews::Churned(MemberId(1), false, true), churns.to_owned()),
        (BondNews::Churned(MemberId(1), true, true), churns.replace("this end", "the other end")),
        (
            BondNews::Looped(MemberId(0)),
            "s1/uplink/up0: the other end is this very system: a cable leads back".to_owned(),
        ),
        (
            BondNews::Plain(Some(Plain::Looped)),
            "s1/uplink: frames are not numbered: a cable leads back to this bond".to_owned(),
        ),
        (
            BondNews::Plain(Some(Plain::Miswired)),
            "s1/uplink: frames are not numbered: members lead to different bonds".to_owned(),
        ),
    ] {
        let (level, text) = said(news);
        assert!(matches!(level, Level::Warning), "{text}");
        assert_eq!(text, wanted);
    }
    let (level, text) = said(BondNews::Churned(MemberId(0), true, false));
    assert!(matches!(level, Level::Info), "{text}");
    assert_eq!(text, "s1/uplink/up0: the other end churns no more");
}
