//! VdeServer with clients that speak the protocol, and without a worker: the orders to it are
//! looked at.

use super::waiting::{PATIENCE, WAITING};
use super::*;
use crate::worker::{Unwatched, Wake};
use ports::Survey;
use ports::vde::request::{ADDRESS_BYTES, MAGIC, VERSION, answer};
use std::os::unix::net::UnixDatagram;
use std::path::{Path, PathBuf};
use std::sync::mpsc::{Receiver, sync_channel};
use std::thread::JoinHandle;

const PATIENT: Duration = Duration::from_secs(20);

/// VdeServer that are served, in a directory of their own.
struct Bed {
    plugs: VdeServer,
    orders: Receiver<Request>,
    thread: Option<JoinHandle<()>>,
    scratch: PathBuf,
}

impl Bed {
    fn new(name: &str) -> Bed {
        let scratch = std::env::temp_dir().join(format!("levada-plugs-{}-{name}", std::process::id()));
        std::fs::create_dir(&scratch).unwrap();
        let scratch = std::fs::canonicalize(scratch).unwrap();
        let (inbox, orders) = sync_channel(64);
        let plugs = VdeServer::new(
            Log::new("test", crate::system::log::Format::Text),
            inbox,
            Wake::new().unwrap().waker(),
            None,
        )
        .unwrap();
        let thread = std::thread::spawn({
            let plugs = plugs.clone();
            move || plugs.run()
        });
        Bed { plugs, orders, thread: Some(thread), scratch }
    }

    fn plan(&self, directory: &str, plug: u32, hub: bool) -> VdePlan {
        let directory = self.scratch.join(directory).to_str().unwrap().to_owned();
        VdePlan { directory, plug, hub, mode: None, group: None, mtu: 1500 }
    }

    fn open(&self, plug: u32, device: usize) -> PlugId {
        self.open_in("red", plug, device)
    }

    fn open_in(&self, directory: &str, plug: u32, device: usize) -> PlugId {
        let plan = self.plan(directory, plug, false);
        let id = self.plugs.open(&plan, format!("plug {plug}"), &Survey::default(), Otherwise::Refuse).unwrap();
        self.plugs.join(id, device);
        id
    }

    /// The next order, in words.
    fn order(&self) -> String {
        match self.orders.recv_timeout(PATIENT) {
            Ok(Request::Restore { device, .. }) => format!("up {device}"),
            Ok(Request::Gone { device, .. }) => format!("gone {device}"),
            Ok(_) => "another".to_owned(),
            Err(error) => panic!("no order: {error}"),
        }
    }

    fn client(&self, plug: u32) -> Client {
        Client::new(&self.scratch.join("red"), plug)
    }

    /// Whether it was told that frames of the first plug do not pass, and not yet that they do.
    fn lacks_a_port(&self) -> bool {
        let board = self.plugs.board();
        board.plugs[0].handed.is_due() || board.plugs[0].handed.is_mended()
    }
}

impl Drop for Bed {
    fn drop(&mut self) {
        self.plugs.stop();
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
        let _ = std::fs::remove_dir_all(&self.scratch);
    }
}

struct Client {
    stream: UnixStream,
    path: PathBuf,
    _data: UnixDatagram,
}

impl Client {
    /// Asks for plug number `plug`, 0 for any.
    fn new(directory: &Path, plug: u32) -> Client {
        let client = Client::connected(directory);
        client.ask(plug);
        client
    }

    fn connected(directory: &Path) -> Client {
        static NUMBER: std::sync::atomic::AtomicU32 = std::sync::atomic::AtomicU32::new(0);
        let number = NUMBER.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
        let stream = UnixStream::connect(directory.join("ctl")).unwrap();
        stream.set_read_timeout(Some(PATIENT)).unwrap();
        let path = directory.join(format!(".00001-{number:05}"));
        let data = UnixDatagram::bind(&path).unwrap();
        Client { stream, path, _data: data }
    }

    fn ask(&self, plug: u32) {
        let head = [MAGIC, VERSION, plug << 8].map(u32::to_ne_bytes).concat();
        let request = [&head[..], &answer(&self.path).unwrap(), b"a client"].concat();
        std::io::Write::write_all(&mut &self.stream, &request).unwrap();
    }

    /// Whether it is answered, or sent away.
    fn is_in(&self) -> bool {
        let mut answer = [0; ADDRESS_BYTES];
        (&self.stream).read_exact(&mut answer).is_ok()
    }

    fn is_sent_away(&self) -> bool {
        matches!((&self.stream).read(&mut [0]), Ok(0))
    }
}

#[test]
fn clients_come_and_go_and_the_worker_is_told() {
    let bed = Bed::new("come-and-go");
    // The order of opening does not matter, the numbers do.
    bed.open(2, 20);
    bed.open(1, 10);
    let one = bed.client(0);
    assert!(one.is_in());
    let two = bed.client(0);
    assert!(two.is_in());
    assert_eq!([bed.order(), bed.order()], ["up 10", "up 20"]);
    assert!(!bed.client(0).is_in(), "none is free");
    assert!(!bed.client(1).is_in() && !bed.client(3).is_in());
    drop(one);
    assert_eq!(bed.order(), "gone 10");
    let again = bed.client(1);
    assert!(again.is_in());
    assert_eq!(bed.order(), "up 10");
}

#[test]
fn a_plug_takes_clients_once_it_is_joined_and_none_once_it_is_closed() {
    let bed = Bed::new("join-and-close");
    let id =
        bed.plugs.open(&bed.plan("red", 1, false), "plug 1".to_owned(), &Survey::default(), Otherwise::Refuse).unwrap();
    assert!(!bed.client(0).is_in(), "the worker has no device for it yet");
    bed.plugs.join(id, 5);
    let client = bed.client(0);
    assert!(client.is_in());
    assert_eq!(bed.order(), "up 5");
    let other = bed.open(2, 6);
    bed.plugs.close(id);
    assert!(client.is_sent_away());
    let second = bed.client(0);
    assert!(second.is_in());
    assert_eq!(bed.order(), "up 6");
    bed.plugs.close(other);
    assert!(second.is_sent_away());
    assert!(!bed.scratch.join("red/ctl").exists(), "the last plug closes the directory");
    let reopened = bed.open(1, 7);
    assert!(bed.client(0).is_in());
    bed.plugs.close(reopened);
}

/// As where no descriptor is left: a client that leaves gives some back.
#[test]
fn a_client_that_leaves_is_noticed_while_none_can_be_let_in() {
    let bed = Bed::new("exhausted");
    bed.open(1, 10);
    let client = bed.client(0);
    assert!(client.is_in());
    assert_eq!(bed.order(), "up 10");
    // From now on the directory's socket lets nobody in, and calls for it again and again.
    rustix::net::shutdown(bed.plugs.board().directories[0].directory.fd(), rustix::net::Shutdown::Both).unwrap();
    std::thread::sleep(2 * EXHAUSTED);
    drop(client);
    assert_eq!(bed.order(), "gone 10");
}

#[test]
fn a_directory_that_cannot_be_had_changes_nothing() {
    let bed = Bed::new("refused");
    std::fs::create_dir(bed.scratch.join("other")).unwrap();
    std::fs::write(bed.scratch.join("other/file"), "").unwrap();
    assert!(
        bed.plugs
            .open(&bed.plan("other", 1, false), "plug 1".to_owned(), &Survey::default(), Otherwise::Refuse)
            .is_err()
    );
    bed.open(1, 1);
    assert!(bed.client(0).is_in());
}

#[test]
fn a_hub_is_one_device_that_is_up_while_it_has_a_client() {
    let bed = Bed::new("hub");
    let id =
        bed.plugs.open(&bed.plan("red", 1, true), "hub".to_owned(), &Survey::default(), Otherwise::Refuse).unwrap();
    bed.plugs.join(id, 1);
    let clients: Vec<_> = (0..MAX_CLIENTS).map(|_| bed.client(0)).collect();
    assert!(clients.iter().all(Client::is_in));
    assert!(!bed.client(1).is_in(), "it is full");
    assert!((0..MAX_CLIENTS).all(|_| bed.order() == "up 1"));
    drop(clients);
    let orders: Vec<_> = (0..MAX_CLIENTS).map(|_| bed.order()).collect();
    assert_eq!(orders.last().map(String::as_str), Some("gone 1"));
    assert!(orders[..MAX_CLIENTS - 1].iter().all(|order| order == "up 1"));
}

#[test]
fn lines_about_one_directory_hide_none_about_another() {
    let bed = Bed::new("lines");
    bed.open(1, 1);
    bed.open_in("blue", 1, 2);
    let [red, blue] = ["red", "blue"].map(|name| bed.plan(name, 1, false).directory);
    let mut board = bed.plugs.board();
    let written = (0..20).filter(|_| board.line(&red, Level::Warning, "a client is refused")).count();
    assert!(written < 20, "{written}");
    assert!(board.line(&blue, Level::Warning, "it was removed"));
}

#[test]
fn a_crowd_that_says_nothing_is_bounded_and_sent_away() {
    let bed = Bed::new("crowd");
    bed.open(1, 1);
    let path = bed.scratch.join("red/ctl");
    let crowd: Vec<_> = (0..WAITING + 10).map(|_| UnixStream::connect(&path).unwrap()).collect();
    let start = Instant::now();
    for silent in &crowd[..10] {
        silent.set_read_timeout(Some(PATIENT)).unwrap();
        assert_eq!((&*silent).read(&mut [0]).unwrap(), 0);
    }
    assert!(start.elapsed() < PATIENCE, "the oldest make room at once");
    assert!(bed.client(0).is_in(), "one that knows what it wants gets in");
    let last = crowd.last().unwrap();
    last.set_read_timeout(Some(PATIENT)).unwrap();
    let mut last: &UnixStream = last;
    assert_eq!(last.read(&mut [0]).unwrap(), 0);
}

#[test]
fn a_crowd_at_one_directory_takes_no_place_of_a_client_at_another() {
    let bed = Bed::new("crowds");
    bed.open(1, 1);
    bed.open_in("blue", 1, 2);
    // libvdeplug makes its socket between connecting and asking.
    let slow = Client::connected(&bed.scratch.join("blue"));
    let path = bed.scratch.join("red/ctl");
    let crowd: Vec<_> = (0..WAITING + 10).map(|_| UnixStream::connect(&path).unwrap()).collect();
    for silent in &crowd[..10] {
        silent.set_read_timeout(Some(PATIENT)).unwrap();
        assert_eq!((&*silent).read(&mut [0]).unwrap(), 0);
    }
    slow.ask(1);
    assert!(slow.is_in());
}

#[test]
fn a_port_that_the_worker_cannot_watch_is_handed_over_again() {
    let bed = Bed::new("unwatched");
    bed.open(1, 10);
    let client = bed.client(0);
    assert!(client.is_in());
    let Ok(Request::Restore { port, back: Some(back), .. }) = bed.orders.recv_timeout(PATIENT) else {
        panic!("the worker is handed none");
    };
    assert!(back.try_send(Unwatched { port, why: "it cannot be watched".to_owned() }).is_ok());
    assert_eq!(bed.order(), "up 10");
    assert!(bed.lacks_a_port());
    let start = Instant::now();
    while bed.lacks_a_port() {
        assert!(start.elapsed() < PATIENT, "it is not told that frames pass again");
        std::thread::sleep(TICK / 10);
    }
    drop(client);
    assert_eq!(bed.order(), "gone 10");
}

#[test]
fn a_port_that_could_not_be_made_is_handed_over_when_it_can_be() {
    let bed = Bed::new("unmade");
    let plan = bed.plan("red", 1, true);
    let id = bed.plugs.open(&plan, "hub".to_owned(), &Survey::default(), Otherwise::Refuse).unwrap();
    bed.plugs.join(id, 1);
    let one = bed.client(0);
    assert!(one.is_in());
    assert_eq!(bed.order(), "up 1");
    // A port of several clients takes no such file: as where no descriptor is left.
    let nothing = std::fs::File::open("/dev/null").unwrap().into();
    let data = std::mem::replace(&mut bed.plugs.board().plugs[0].clients[0].plugged.data, nothing);
    let two = bed.client(0);
    assert!(two.is_in());
    assert!(bed.orders.recv_timeout(TICK + TICK / 2).is_err(), "there is no port");
    assert!(bed.lacks_a_port());
    bed.plugs.board().plugs[0].clients[0].plugged.data = data;
    assert_eq!(bed.order(), "up 1");
}
