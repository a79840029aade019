//! Front ends with one that speaks the protocol, and without a worker: the orders to it are looked
//! at.

use super::*;
use crate::system::log::Format;
use crate::worker::{AnyPort, Unwatched, Wake};
use ports::vhost::feature;
use ports::vhost::front_end::FrontEnd;
use std::sync::mpsc::{Receiver, channel, sync_channel};

const PATIENT: Duration = Duration::from_secs(20);
const FEATURES: u64 = feature::VERSION_1 | feature::PROTOCOL_FEATURES;

/// A port that the worker was handed, with the way back; nothing where it is to have none.
type Order = Option<(AnyPort, SyncSender<Unwatched>)>;

/// Obeys in the worker's place: what it is asked to give back it has not.
fn obey(orders: &Receiver<Request>, told: &Sender<Order>) {
    for order in orders {
        match order {
            Request::Restore { port, back: Some(back), .. } => drop(told.send(Some((port, back)))),
            Request::Take { reply, .. } => drop(reply.try_send(None)),
            Request::Absent { .. } => drop(told.send(None)),
            _ => {}
        }
    }
}

#[test]
fn a_machine_s_port_that_the_worker_cannot_watch_is_handed_over_again() {
    let directory = std::env::temp_dir().join(format!("levada-front-ends-{}", std::process::id()));
    std::fs::create_dir(&directory).unwrap();
    let socket = directory.join("a.sock");
    let (inbox, orders) = sync_channel(64);
    let (news, _heard) = sync_channel(64);
    let waker = Wake::new().unwrap().waker();
    let (front_ends, _starter) = FrontEnds::new(Log::new("t", Format::Text), inbox, waker, news, None).unwrap();
    let plan = VhostPlan {
        socket: socket.to_str().unwrap().to_owned(),
        listen: true,
        group: None,
        queues: 1,
        offload: true,
        sealed: true,
        mtu: 1500,
    };
    let id = front_ends.open(&plan, "a".to_owned()).unwrap();
    front_ends.join(id, 7);
    let serving = std::thread::spawn({
        let front_ends = front_ends.clone();
        move || front_ends.run()
    });
    let (telling, told) = channel();
    std::thread::spawn(move || obey(&orders, &telling));
    let stream = UnixStream::connect(&socket).unwrap();
    stream.set_read_timeout(Some(PATIENT)).unwrap();
    let front_end = FrontEnd::new(1, 64, FEATURES).unwrap();
    front_end.speak(&stream).unwrap();
    // The last that was handed over: the others are not waited for any more.
    let why = || "it cannot be watched".to_owned();
    while let Some((port, back)) = told.recv_timeout(PATIENT).unwrap() {
        if back.try_send(Unwatched { port, why: why() }).is_ok() {
            break;
        }
    }
    assert!(told.recv_timeout(PATIENT).unwrap().is_none(), "its port is down");
    let again = told.recv_timeout(PATIENT).unwrap().expect("and up again, in the same session");
    let lacks_a_port = || {
        let board = front_ends.board();
        let live = board.machines[0].live.as_ref().unwrap();
        live.handed.is_due() || live.handed.is_mended()
    };
    let start = Instant::now();
    while lacks_a_port() {
        assert!(start.elapsed() < PATIENT, "it is not told that frames pass again");
        std::thread::sleep(TICK / 10);
    }
    drop(again);
    front_ends.stop();
    serving.join().unwrap();
    std::fs::remove_dir_all(&directory).unwrap();
}
