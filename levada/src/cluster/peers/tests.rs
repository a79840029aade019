//! Hosts of a cluster on loopback, what goes on between them, and who is kept out.
//!
//! Each has an address of its own below 127.0.0.0/8 and a port that the kernel chooses, so that
//! tests do not meet.

mod strangers;
mod wire;

use super::*;
use crate::cluster::pki::authority::{Authority, request, settle};
use crate::system::log::Format;
use std::collections::BTreeSet;
use std::net::{IpAddr, Ipv4Addr};
use std::os::unix::fs::PermissionsExt as _;
use std::sync::Mutex;
use std::sync::atomic::AtomicU32;
use std::time::Instant;
use wire::Wire;

/// How long something may take on a machine that has much else to do.
const PATIENCE: Duration = Duration::from_secs(60);

/// Waits until it is so.
fn until(what: &str, mut is_so: impl FnMut() -> bool) {
    let begin = Instant::now();
    while !is_so() {
        assert!(begin.elapsed() < PATIENCE, "not in time: {what}");
        std::thread::sleep(Duration::from_millis(2));
    }
}

/// An address that no other test uses.
fn address() -> SocketAddr {
    static NEXT: AtomicU32 = AtomicU32::new(1);
    let (n, pid) = (NEXT.fetch_add(1, Ordering::Relaxed), std::process::id());
    let octets = [127, 64 + (pid >> 8 & 63) as u8, pid as u8, n as u8];
    SocketAddr::new(IpAddr::V4(Ipv4Addr::from(octets)), 0)
}

/// Directories that go when the test ends.
struct TestDirectory(PathBuf);

impl TestDirectory {
    fn new() -> TestDirectory {
        static NEXT: AtomicU32 = AtomicU32::new(1);
        let name = format!("levada-peers-{}-{}", std::process::id(), NEXT.fetch_add(1, Ordering::Relaxed));
        let path = std::env::temp_dir().join(name);
        std::fs::create_dir_all(&path).unwrap();
        TestDirectory(path)
    }

    /// The directory of a host, which has joined.
    fn join(&self, authority: &Authority, host: &str) -> PathBuf {
        let directory = self.0.join(host);
        std::fs::create_dir_all(&directory).unwrap();
        let (key, request) = request(host).unwrap();
        let (name, answer) = authority.sign(&request).unwrap();
        assert_eq!(name, host);
        settle(&directory, &key.serialize_pem(), &answer).unwrap();
        directory
    }
}

impl Drop for TestDirectory {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

/// What a host has heard: from whom, and what.
type Heard = Arc<Mutex<Vec<(String, Vec<u8>)>>>;

/// A host that keeps what it hears.
struct Host {
    peers: Peers,
    heard: Heard,
    settings: Settings,
}

impl Host {
    fn new(host: &str, directory: PathBuf) -> Host {
        Host::at(Settings { host: host.to_owned(), listen: address(), directory, others: BTreeMap::new() })
    }

    /// At the address it had before.
    fn at(settings: Settings) -> Host {
        Host::on(Socket::default(), settings)
    }

    /// At a socket that another has left, if one has.
    fn on(socket: Socket, settings: Settings) -> Host {
        let heard = Heard::default();
        let hear: Hear = Arc::new({
            let heard = Arc::clone(&heard);
            move |host, datagram| {
                heard.lock().unwrap().push((host.to_owned(), datagram.to_vec()));
                true
            }
        });
        let peers = Peers::start(settings.clone(), socket, Log::new("test", Format::Text), hear).unwrap();
        let mut host = Host { peers, heard, settings };
        until("it listens", || host.peers.seen().own.listening.is_some());
        host.settings.listen = host.address();
        host
    }

    fn address(&self) -> SocketAddr {
        self.peers.seen().own.listening.unwrap()
    }

    /// Knows another host, which is at `address`.
    fn meet(&mut self, other: &str, address: SocketAddr) {
        self.settings.others.insert(other.to_owned(), address);
        self.peers.change(self.settings.clone());
        until("it knows the other", || self.status(other).address == address);
    }

    fn status(&self, other: &str) -> status::Host {
        let unknown = status::Host::new(SocketAddr::new(IpAddr::V4(Ipv4Addr::UNSPECIFIED), 0));
        self.peers.seen().hosts.get(other).cloned().unwrap_or(unknown)
    }

    fn heard(&self, from: &str, what: &[u8]) -> bool {
        self.heard.lock().unwrap().iter().any(|(name, datagram)| name == from && datagram == what)
    }

    fn count(&self) -> usize {
        self.heard.lock().unwrap().len()
    }

    /// Says it until it is heard: datagrams may get lost.
    fn tell(&self, other: &Host, what: &[u8]) {
        let (from, to) = (&self.settings.host, &other.settings.host);
        let begin = Instant::now();
        while !other.heard(from, what) {
            assert!(begin.elapsed() < PATIENCE, "{from} is not heard by {to}: {:?}", self.peers.seen());
            self.peers.voice().send(to, what.to_vec());
            std::thread::sleep(Duration::from_millis(20));
        }
    }
}

/// Hosts that know each other.
fn company<const N: usize>(place: &TestDirectory, authority: &Authority, names: [&str; N]) -> [Host; N] {
    let mut hosts = names.map(|name| Host::new(name, place.join(authority, name)));
    let addresses: Vec<_> = names.iter().zip(&hosts).map(|(name, host)| (*name, host.address())).collect();
    for host in &mut hosts {
        let own = host.settings.host.clone();
        for &(name, address) in addresses.iter().filter(|(name, _)| *name != own) {
            host.meet(name, address);
        }
    }
    hosts
}

#[test]
fn every_host_hears_every_other_under_its_name() {
    let (place, authority) = (TestDirectory::new(), Authority::new().unwrap());
    let hosts = company(&place, &authority, ["a", "b", "c"]);
    for from in &hosts {
        for to in hosts.iter().filter(|to| to.settings.host != from.settings.host) {
            from.tell(to, format!("{} to {}", from.settings.host, to.settings.host).as_bytes());
        }
    }
    let [a, b, _] = &hosts;
    assert!(b.heard.lock().unwrap().iter().all(|(from, what)| what.starts_with(from.as_bytes())));
    let seen = a.status("b");
    assert!(seen.outgoing.is_some() && seen.incoming.is_some() && seen.sent > 0 && seen.received > 0);
    assert!(seen.not_after.is_some() && seen.error.is_none(), "{seen:?}");
    // The longest passes whole, and nothing longer does.
    let longest: Vec<u8> = (0..flow::MAX_DATAGRAM).map(|i| i as u8).collect();
    a.tell(b, &longest);
    let unsent = a.status("b").unsent;
    a.peers.voice().send("b", vec![0; flow::MAX_DATAGRAM + 1]);
    until("it is counted", || a.status("b").unsent == unsent + 1);
    // To whom is no member, nothing is said.
    a.peers.voice().send("nobody", b"x".to_vec());
}

#[test]
fn at_rest_nothing_is_sent() {
    let (place, authority) = (TestDirectory::new(), Authority::new().unwrap());
    let [mut a, b] = company(&place, &authority, ["a", "b"]);
    let wire = Wire::to(b.address());
    a.meet("b", wire.address());
    a.tell(&b, b"hello");
    std::thread::sleep(Duration::from_millis(300));
    let before = wire.passed();
    std::thread::sleep(Duration::from_secs(2));
    assert_eq!(wire.passed(), before);
    assert!(before < 400, "{before} packets for a handshake and a word");
    assert!(a.status("b").outgoing.is_some() && b.status("a").incoming.is_some());
}

#[test]
fn what_is_posted_too_fast_is_counted_and_costs_nobody_else_anything() {
    let (place, authority) = (TestDirectory::new(), Authority::new().unwrap());
    let [a, b, c] = company(&place, &authority, ["a", "b", "c"]);
    a.tell(&b, b"hello");
    let before = a.status("b");
    for n in 0..5000u32 {
        a.peers.voice().send("b", n.to_be_bytes().to_vec());
    }
    a.tell(&c, b"hello");
    let accounted = || {
        let (seen, now) = (a.peers.seen(), a.status("b"));
        seen.unposted + now.unsent - before.unsent + now.sent - before.sent
    };
    until("all are accounted for", || accounted() >= 5000);
    assert!(a.status("b").unsent > before.unsent || a.peers.seen().unposted > 0);
    // What was sent is not more than a burst and what the time since allows.
    assert!(a.status("b").sent - before.sent < 5000);
}

#[test]
fn a_third_of_all_packets_lost_holds_nobody_back() {
    let (place, authority) = (TestDirectory::new(), Authority::new().unwrap());
    let [mut a, b] = company(&place, &authority, ["a", "b"]);
    let wire = Wire::to(b.address());
    wire.lose(300);
    a.meet("b", wire.address());
    a.tell(&b, b"hello");
    let before = b.count();
    for n in 0..400u32 {
        a.peers.voice().send("b", n.to_be_bytes().to_vec());
        std::thread::sleep(Duration::from_millis(5));
    }
    // 280 are to be expected; a controller that yields to loss would let a few dozen through.
    until("most have come", || b.count() - before > 200);
}

#[test]
fn a_host_that_was_killed_is_heard_again_when_it_returns() {
    let (place, authority) = (TestDirectory::new(), Authority::new().unwrap());
    let [mut a, b] = company(&place, &authority, ["a", "b"]);
    let wire = Wire::to(b.address());
    a.meet("b", wire.address());
    a.tell(&b, b"before");
    // Nobody hears its farewell.
    wire.lose(1000);
    let settings = b.settings.clone();
    drop(b);
    // What is said meanwhile takes no memory, and is counted.
    for _ in 0..2000 {
        a.peers.voice().send("b", vec![0; 1000]);
        std::thread::sleep(Duration::from_micros(200));
    }
    let b = Host::at(settings);
    wire.lose(0);
    a.tell(&b, b"after");
    let told = a.status("b");
    assert!(told.connections >= 2 && told.unsent > 0, "{told:?}");
    // And the other way, without waiting for anything.
    b.tell(&a, b"back");
}

#[test]
fn what_is_said_while_one_process_goes_and_the_next_comes_is_heard_by_that() {
    let (place, authority) = (TestDirectory::new(), Authority::new().unwrap());
    let socket = Socket::default();
    let directory = place.join(&authority, "b");
    let settings = Settings { host: "b".to_owned(), listen: address(), directory, others: BTreeMap::new() };
    let mut b = Host::on(socket.clone(), settings);
    let mut a = Host::new("a", place.join(&authority, "a"));
    a.meet("b", b.address());
    b.meet("a", a.address());
    for word in ["first", "second", "third"] {
        a.tell(&b, word.as_bytes());
        let mut lent = vec![socket.lend().unwrap()];
        let settings = b.settings.clone();
        b.peers.hand_over();
        until("the connection has ended", || a.status("b").outgoing.is_none());
        // Nobody reads the socket now, and nothing is lost. It waits as long as a connection may
        // take, at most.
        a.peers.voice().send("b", b"in between".to_vec());
        std::thread::sleep(Duration::from_millis(20));
        b = Host::on(Socket::among(&mut lent), settings);
        until("it is heard", || {
            let late = a.status("b").unsent > 0;
            if late {
                a.peers.voice().send("b", b"in between".to_vec());
                std::thread::sleep(Duration::from_millis(20));
            }
            b.heard("a", b"in between")
        });
    }
}

#[test]
fn a_dead_host_is_given_up_and_found_again() {
    let (place, authority) = (TestDirectory::new(), Authority::new().unwrap());
    let [mut a, b] = company(&place, &authority, ["a", "b"]);
    let wire = Wire::to(b.address());
    a.meet("b", wire.address());
    a.tell(&b, b"before");
    wire.lose(1000);
    until("it is given up", || {
        a.peers.voice().send("b", b"hello?".to_vec());
        std::thread::sleep(Duration::from_millis(20));
        a.status("b").outgoing.is_none()
    });
    let error = a.status("b").error.expect("it is said why").1;
    assert!(error.contains("answer"), "{error}");
    wire.lose(0);
    a.tell(&b, b"after");
}

#[test]
fn who_does_not_answer_is_asked_by_more_attempts_than_one_and_a_bounded_number() {
    let (place, authority) = (TestDirectory::new(), Authority::new().unwrap());
    let mut a = Host::new("a", place.join(&authority, "a"));
    let silent = UdpSocket::bind(address()).unwrap();
    silent.set_read_timeout(Some(Duration::from_millis(10))).unwrap();
    a.meet("b", silent.local_addr().unwrap());
    a.peers.voice().send("b", b"hello?".to_vec());
    let (mut attempts, mut buffer) = (BTreeSet::new(), [0; 2048]);
    until("it is given up", || {
        while let Ok(length) = silent.recv(&mut buffer) {
            // Flags, version, and what the client calls the server until that has said its own name
            // (RFC 9000, section 17.2.2).
            attempts.insert(buffer[6..length.min(6 + usize::from(buffer[5]))].to_vec());
        }
        a.status("b").error.is_some()
    });
    assert!((2..=4).contains(&attempts.len()), "{}", attempts.len());
}

#[test]
fn a_host_without_certificate_waits_for_one() {
    let (place, authority) = (TestDirectory::new(), Authority::new().unwrap());
    let mut b = Host::new("b", place.join(&authority, "b"));
    let directory = place.0.join("a");
    let others = BTreeMap::from([("b".to_owned(), b.address())]);
    let settings = Settings { host: "a".to_owned(), listen: address(), directory, others };
    let a = Peers::start(settings, Socket::default(), Log::new("test", Format::Text), Arc::new(|_, _| true)).unwrap();
    until("it says what it waits for", || {
        a.seen()
            .own
            .error
            .is_some_and(|why| why.contains("host.pem is not there") && why.contains("levada cluster join"))
    });
    place.join(&authority, "a");
    until("it takes it up", || a.seen().own.error.is_none() && a.seen().own.listening.is_some());
    b.meet("a", a.seen().own.listening.unwrap());
    until("it is heard", || {
        a.voice().send("b", b"hello".to_vec());
        std::thread::sleep(Duration::from_millis(20));
        b.heard("a", b"hello")
    });
}

#[test]
fn a_key_that_others_could_read_is_taken_when_they_cannot_any_more() {
    let (place, authority) = (TestDirectory::new(), Authority::new().unwrap());
    let host = Host::new("a", place.join(&authority, "a"));
    let until_then = host.peers.seen().own.not_after;
    let pem = place.join(&authority, "a").join("host.pem");
    let mode = |mode| std::fs::set_permissions(&pem, std::fs::Permissions::from_mode(mode)).unwrap();
    let error = || {
        host.peers.change(host.settings.clone());
        host.peers.seen().own.error
    };
    mode(0o644);
    until("it is said", || error().is_some_and(|why| why.contains("mode 0644") && why.contains("chmod 0600")));
    assert!(host.peers.seen().own.listening.is_some(), "with the one before");
    mode(0o600);
    until("nothing is wrong any more", || error().is_none());
    assert!(host.peers.seen().own.not_after >= until_then);
}

#[test]
fn the_authority_changes_while_everybody_talks() {
    let (place, old) = (TestDirectory::new(), Authority::new().unwrap());
    let [a, b, c] = company(&place, &old, ["a", "b", "c"]);
    let all = |word: &str| {
        for (from, to) in [(&a, &b), (&b, &a), (&b, &c), (&c, &b), (&a, &c), (&c, &a)] {
            from.tell(to, word.as_bytes());
        }
    };
    // Of a host: it joins again, and is told to look.
    let again = |host: &Host, authority: &Authority| {
        place.join(authority, &host.settings.host);
        host.peers.change(host.settings.clone());
    };
    all("old");
    let mut new = old.successor().unwrap();
    for (n, host) in [&b, &a, &c].into_iter().enumerate() {
        again(host, &new);
        all(&format!("{n} have the new one"));
        assert_eq!(host.peers.seen().own.authorities.unwrap().1, 2);
    }
    new.finish();
    for (n, host) in [&c, &b, &a].into_iter().enumerate() {
        again(host, &new);
        all(&format!("{n} have forgotten the old one"));
        assert_eq!(host.peers.seen().own.authorities.unwrap().1, 1);
    }
    // Who has slept through it is out.
    let mut d = Host::new("d", place.join(&old, "d"));
    d.meet("a", a.address());
    d.peers.voice().send("a", b"hello".to_vec());
    until("it is not taken for a member", || d.status("a").error.is_some());
    assert!(!a.heard("d", b"hello"));
}

#[test]
fn the_end_of_a_certificate_is_warned_of_each_day_whatever_the_clock_was_set_to() {
    let (place, authority) = (TestDirectory::new(), Authority::new().unwrap());
    let settings = Settings {
        host: "a".to_owned(),
        listen: address(),
        directory: place.join(&authority, "a"),
        others: BTreeMap::new(),
    };
    let (_sender, changes) = watch::channel(settings.clone());
    let (status, log) = (Arc::new(Status::default()), Log::new("test", Format::Text));
    let acceptor = Acceptor::new(Arc::clone(&status), Arc::new(|_, _| true));
    let mut house = House::new(changes, Socket::default(), status, acceptor, log.clone());
    let credentials = Credentials::load(&settings.directory, "a").unwrap();
    let (end, begin) = (credentials.not_after, Instant::now());
    house.credentials = Some(credentials);
    let mut warned = |days_left: i64, hours: u64| {
        house.warn(end - time::Duration::days(days_left), begin + Duration::from_secs(hours * 3600));
        log.waiting().matches("the certificate of this host expires").count()
    };
    assert_eq!(warned(40, 0), 0);
    // The clock is a month ahead for a minute.
    assert_eq!((warned(1, 0), warned(29, 1)), (1, 1));
    assert_eq!((warned(28, 24), warned(28, 25), warned(27, 48)), (2, 2, 3));
}
