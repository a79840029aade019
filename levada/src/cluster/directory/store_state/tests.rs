//! Hosts around a store in memory: who has which endpoint, what becomes of entries that are wrong,
//! and what is left when everybody has settled.

use super::*;

/// A store that compares and swaps, and tells everybody.
#[derive(Default)]
struct Fake {
    /// Value, revision, lease, and since which revision.
    keys: BTreeMap<String, (Vec<u8>, i64, i64, i64)>,
    revision: i64,
}

impl Fake {
    fn put(&mut self, path: &str, value: &[u8], lease: i64) {
        self.revision += 1;
        let since = self.keys.get(path).map_or(self.revision, |held| held.3);
        self.keys.insert(path.to_owned(), (value.to_vec(), self.revision, lease, since));
    }

    /// True: done.
    fn write(&mut self, write: &Write, lease: i64) -> bool {
        let holds = |condition: &If| match condition {
            If::Absent(key) => !self.keys.contains_key(&key.path("/l")),
            If::Unchanged(key, revision) => self.keys.get(&key.path("/l")).is_some_and(|held| held.1 == *revision),
        };
        if !write.conditions.iter().all(holds) {
            return false;
        }
        let path = write.key.path("/l");
        match &write.value {
            Some(value) => self.put(&path, value, if write.leased { lease } else { 0 }),
            None => {
                self.revision += 1;
                self.keys.remove(&path);
            }
        }
        true
    }

    /// A lease runs out.
    fn expire(&mut self, lease: i64) {
        self.revision += 1;
        self.keys.retain(|_, held| held.2 != lease);
    }
}

/// A host with its store state.
struct Host {
    store_state: StoreState,
    lease: i64,
}

const RED: Mac = Mac([2, 0, 0, 0, 0, 1]);
const BLUE: Mac = Mac([2, 0, 0, 0, 0, 2]);

fn own(n: u8, endpoints: &[(&str, Mac)]) -> Own {
    Own {
        host: format!("h{n}"),
        from: format!("d@n{n}"),
        address: Some(SocketAddr::from(([192, 0, 2, n], 7370))),
        vtep: Some(IpAddr::from([192, 0, 2, n])),
        endpoints: endpoints
            .iter()
            .map(|&(tenant, mac)| ((tenant.to_owned(), mac), Told { name: format!("{tenant}1"), ..Told::default() }))
            .collect(),
    }
}

impl Host {
    fn new(n: u8, endpoints: &[(&str, Mac)]) -> Host {
        let lease = i64::from(n) + 100;
        let mut store_state = StoreState::new("/l", own(n, endpoints));
        store_state.set_lease(lease);
        Host { store_state, lease }
    }

    /// Reads everything.
    fn read(&mut self, store: &Fake) {
        let mut store_state = StoreState::new("/l", self.store_state.own.clone());
        store_state.set_lease(self.lease);
        for (path, (value, revision, lease, since)) in &store.keys {
            store_state.put(path, value, (*since, *revision), *lease);
        }
        store_state.reach(store.revision);
        self.store_state = store_state;
    }

    /// Writes until nothing is to be written. How much that was.
    fn settle(&mut self, store: &mut Fake) -> usize {
        self.read(store);
        let mut count = 0;
        while let Some(write) = self.store_state.next_write() {
            count += 1;
            assert!(count < 100, "it never ends: {write:?}");
            assert!(store.write(&write, self.lease), "it knew everything: {write:?}");
            self.read(store);
        }
        count
    }

    fn holds(&self, tenant: &str, mac: Mac) -> bool {
        self.store_state.outcome().held.contains(&(tenant.to_owned(), mac))
    }

    /// Where it believes an endpoint to be.
    fn place(&self, tenant: &str, mac: Mac) -> Option<String> {
        let members = self.store_state.outcome().members;
        let has =
            |known: &&Known| known.member.endpoints.iter().any(|one| one.tenant == tenant && one.macs.contains(&mac));
        members.iter().find(has).map(|known| known.member.name.clone())
    }
}

#[test]
fn an_endpoints_single_ip_addresses_are_known_to_other_hosts() {
    let mut store = Fake::default();
    let (mut a, mut b) = (Host::new(1, &[]), Host::new(2, &[("red", RED), ("red", BLUE)]));
    for told in b.store_state.own.endpoints.values_mut() {
        told.ip = ["fd00::1/128", "10.0.0.1/32", "10.0.0.0/24"].map(str::to_owned).to_vec();
    }
    b.settle(&mut store);
    a.settle(&mut store);
    let members = a.store_state.outcome().members;
    let [remote] = &members[0].member.endpoints[..] else { panic!("{members:?}") };
    assert_eq!(remote.macs.len(), 2, "one endpoint with two keys");
    assert_eq!(remote.ips, [IpAddr::from([10, 0, 0, 1]), "fd00::1".parse().unwrap()]);
}

#[test]
fn hosts_find_each_other_and_their_endpoints() {
    let mut store = Fake::default();
    let (mut a, mut b) = (Host::new(1, &[("red", RED)]), Host::new(2, &[("red", BLUE), ("blue", RED)]));
    assert_eq!(a.settle(&mut store), 3, "alive, host, endpoint");
    assert_eq!(b.settle(&mut store), 4);
    a.read(&store);
    assert_eq!(a.place("red", BLUE).as_deref(), Some("h2"));
    assert_eq!(a.place("blue", RED).as_deref(), Some("h2"));
    assert_eq!(b.place("red", RED).as_deref(), Some("h1"));
    assert!(a.holds("red", RED) && !b.holds("red", RED) && b.holds("blue", RED));
    assert_eq!((a.settle(&mut store), b.settle(&mut store)), (0, 0), "nothing is written twice");
}

#[test]
fn of_two_that_claim_one_endpoint_the_first_has_it_until_it_lets_go() {
    let mut store = Fake::default();
    let (mut a, mut b) = (Host::new(1, &[("red", RED)]), Host::new(2, &[("red", RED)]));
    a.settle(&mut store);
    // Both have looked before either wrote.
    b.read(&Fake::default());
    b.settle(&mut store);
    let outcome = b.store_state.outcome();
    assert!(outcome.held.is_empty());
    assert_eq!(
        outcome.contests,
        [Contest {
            tenant: "red".to_owned(),
            mac: RED,
            endpoint: "red/red1 (02:00:00:00:00:01)".to_owned(),
            is_service: false,
            holder: "h1".to_owned()
        }]
    );
    assert!(a.store_state.outcome().contests.is_empty() && a.holds("red", RED));
    a.store_state.set_own(own(1, &[]));
    assert_eq!(a.settle(&mut store), 1, "it lets go");
    assert_eq!(b.settle(&mut store), 1, "and the other has it");
    a.read(&store);
    assert_eq!(a.place("red", RED).as_deref(), Some("h2"));
    // The first wants it back: now it is the second.
    a.store_state.set_own(own(1, &[("red", RED)]));
    assert_eq!(a.settle(&mut store), 0);
    assert_eq!(a.store_state.outcome().contests[0].holder, "h2");
}

#[test]
fn a_race_is_decided_by_the_store() {
    let mut store = Fake::default();
    let (mut a, mut b) = (Host::new(1, &[("red", RED)]), Host::new(2, &[("red", RED)]));
    let claim = |host: &mut Host, store: &mut Fake| {
        while let Some(write) = host.store_state.next_write() {
            if matches!(write.key, Key::Endpoint(..)) {
                return write;
            }
            assert!(store.write(&write, host.lease));
            host.read(store);
        }
        panic!("nothing is claimed");
    };
    let (first, second) = (claim(&mut a, &mut store), claim(&mut b, &mut store));
    assert!(store.write(&first, a.lease) && !store.write(&second, b.lease));
}

#[test]
fn an_away_host_keeps_its_entries_until_somebody_has_the_endpoint_instead() {
    let mut store = Fake::default();
    let (mut a, mut b) = (Host::new(1, &[("red", RED), ("red", BLUE)]), Host::new(2, &[]));
    a.settle(&mut store);
    b.settle(&mut store);
    store.expire(a.lease);
    assert_eq!(b.settle(&mut store), 0);
    let members = b.store_state.outcome().members;
    assert!(
        members[0].is_away && members[0].member.endpoints.len() == 1 && members[0].member.endpoints[0].macs.len() == 2
    );
    b.store_state.set_own(own(2, &[("red", RED)]));
    assert_eq!(b.settle(&mut store), 1);
    assert!(b.holds("red", RED) && b.place("red", BLUE).as_deref() == Some("h1"));
    // It returns, and is told.
    a.settle(&mut store);
    assert_eq!(a.store_state.outcome().contests[0].holder, "h2");
    assert!(!a.holds("red", RED) && a.holds("red", BLUE));
    b.read(&store);
    assert!(!b.store_state.outcome().members[0].is_away);
}

/// A service that several hosts have is looked for at one of them, and at another when that is
/// away; nobody calls that a contest.
#[test]
fn a_service_of_several_hosts_is_at_one_of_them() {
    let mut store = Fake::default();
    let web = |n, is_shared| {
        let mut own = own(n, &[]);
        let told = Told { name: "web".to_owned(), ip: vec!["10.0.0.100".to_owned()], is_service: true, is_shared };
        own.endpoints.insert(("red".to_owned(), RED), told);
        own
    };
    let (mut a, mut b, mut c) = (Host::new(1, &[]), Host::new(2, &[]), Host::new(3, &[]));
    a.store_state.set_own(web(1, true));
    b.store_state.set_own(web(2, true));
    a.settle(&mut store);
    b.settle(&mut store);
    let at = |c: &mut Host, store: &mut Fake| {
        c.settle(store);
        let members = c.store_state.outcome().members;
        let has = |known: &&Known| !known.member.services.is_empty();
        let found: Vec<_> = members.iter().filter(has).collect();
        assert_eq!(found.len(), 1);
        let service = &found[0].member.services[0];
        assert_eq!((service.mac(), service.ips.clone()), (RED, vec![IpAddr::from([10, 0, 0, 100])]));
        assert!(members.iter().all(|known| known.member.endpoints.is_empty()));
        found[0].member.name.clone()
    };
    assert_eq!(at(&mut c, &mut store), "h1");
    assert_eq!(b.store_state.outcome().contests, []);
    store.expire(a.lease);
    b.settle(&mut store);
    assert_eq!(at(&mut c, &mut store), "h2");
    // One that returns has its service for its own clients.
    a.settle(&mut store);
    assert_eq!((at(&mut c, &mut store).as_str(), a.store_state.outcome().contests.len()), ("h2", 0));
    // In a VLAN they are in each other's way.
    a.store_state.set_own(web(1, false));
    a.settle(&mut store);
    assert_eq!(a.store_state.outcome().contests[0].holder, "h2");
    // An endpoint with a service's address is one too many.
    let mut d = Host::new(4, &[("red", RED)]);
    d.settle(&mut store);
    assert_eq!(d.store_state.outcome().contests[0].holder, "h2");
}

#[test]
fn a_host_that_returns_while_it_is_taken_over_keeps_what_it_has() {
    let mut store = Fake::default();
    let (mut a, mut b) = (Host::new(1, &[("red", RED)]), Host::new(2, &[("red", RED)]));
    a.settle(&mut store);
    b.settle(&mut store);
    store.expire(a.lease);
    b.read(&store);
    let write = b.store_state.next_write().expect("it takes over");
    a.settle(&mut store);
    assert!(!store.write(&write, b.lease));
    assert!(a.holds("red", RED));
}

#[test]
fn what_is_wrong_is_refused_by_name_and_the_rest_is_used() {
    let mut store = Fake::default();
    let (mut a, mut b) = (Host::new(1, &[("red", RED)]), Host::new(2, &[("blue", RED)]));
    a.settle(&mut store);
    b.settle(&mut store);
    let own_address = br#"{"version":1,"address":"192.0.2.1:7370"}"#;
    for (path, value) in [
        ("/l/v1/host/thief", &own_address[..]),
        ("/l/v1/host/torn", b"{"),
        ("/l/v1/host/new", br#"{"version":9}"#),
        ("/l/v1/HOST/x", b"{}"),
        ("/l/v1/host/shared", br#"{"version":1,"address":"192.0.2.9:7370","vtep":"192.0.2.2"}"#),
        ("/l/v1/endpoint/red/02:00:00:00:00:99", br#"{"version":1,"host":"nobody","name":"e"}"#),
    ] {
        store.put(path, value, 0);
    }
    a.read(&store);
    let outcome = a.store_state.outcome();
    assert_eq!(outcome.refusals, 6, "{:?}", outcome.refused);
    for (path, why) in [
        ("host/thief", "is host \"h1\"'s"),
        ("host/torn", "EOF"),
        ("host/new", "version 9"),
        ("HOST/x", "nothing"),
        ("host/shared", "is host \"h2\"'s end of tunnels"),
        ("99", "\"nobody\" is not in the store"),
    ] {
        assert!(
            outcome.refused.iter().any(|one| one.contains(path) && one.contains(why)),
            "{path}: {:?}",
            outcome.refused
        );
    }
    // One with another's end of tunnels is a host all the same.
    let ends: Vec<_> = outcome.members.iter().map(|known| (known.member.name.as_str(), known.member.vtep)).collect();
    assert_eq!(ends, [("h2", Some(IpAddr::from([192, 0, 2, 2]))), ("shared", None)]);
    assert_eq!(a.place("blue", RED).as_deref(), Some("h2"));
    // What was broken of its own it writes anew.
    store.put("/l/v1/endpoint/red/02:00:00:00:00:01", b"nonsense", 0);
    store.put("/l/v1/host/h1", b"nonsense", 0);
    store.put("/l/v1/host/h2", b"nonsense", 0);
    store.put("/l/v1/host/thief2", br#"{"version":1,"address":"192.0.2.2:7370"}"#, 0);
    assert_eq!(a.settle(&mut store), 2);
    assert!(a.holds("red", RED));
    // Who was first at an address is first again.
    b.settle(&mut store);
    a.read(&store);
    assert_eq!(a.place("blue", RED).as_deref(), Some("h2"));
    // And what is in order again is refused no more.
    for path in [
        "/l/v1/host/thief",
        "/l/v1/host/thief2",
        "/l/v1/host/shared",
        "/l/v1/host/torn",
        "/l/v1/host/new",
        "/l/v1/HOST/x",
        "/l/v1/endpoint/red/02:00:00:00:00:99",
    ] {
        a.store_state.delete(path, store.revision + 1);
    }
    assert_eq!(a.store_state.outcome().refused, Vec::<String>::new());
}

#[test]
fn a_second_daemon_of_one_name_writes_nothing() {
    let mut store = Fake::default();
    let mut a = Host::new(1, &[("red", RED)]);
    a.settle(&mut store);
    let mut twin = Host::new(1, &[]);
    twin.lease = 900;
    twin.store_state.own.from = "d@elsewhere".to_owned();
    twin.store_state.own.address = Some(SocketAddr::from(([192, 0, 2, 9], 7370)));
    assert_eq!(twin.settle(&mut store), 0);
    assert_eq!(twin.store_state.rival(), Some("d@n1"));
    // The same daemon, started again, goes on at once.
    let mut again = Host::new(1, &[("red", RED)]);
    again.lease = 901;
    again.store_state.set_lease(901);
    assert_eq!(again.settle(&mut store), 1, "its own lease");
    // And when the first has ended, the second has the name.
    store.expire(901);
    twin.settle(&mut store);
    assert!(twin.store_state.rival().is_none() && store.keys.len() == 2, "{:?}", store.keys.keys());
}

#[test]
fn a_daemon_that_is_called_otherwise_is_not_its_own_rival() {
    let mut store = Fake::default();
    let mut a = Host::new(1, &[("red", RED)]);
    a.settle(&mut store);
    // Its machine has another name now.
    a.store_state.own.from = "d@renamed".to_owned();
    a.store_state.own.endpoints.clear();
    assert_eq!(a.settle(&mut store), 2, "what it is called, and what it has");
    assert_eq!(a.store_state.rival(), None);
    // Without a lease nothing is its own.
    a.store_state.own.from = "d@again".to_owned();
    a.store_state.set_lease(0);
    assert_eq!(a.store_state.rival(), Some("d@renamed"));
}

#[test]
fn who_goes_takes_everything_along_and_nothing_else() {
    let mut store = Fake::default();
    let (mut a, mut b) = (Host::new(1, &[("red", RED)]), Host::new(2, &[("blue", RED)]));
    a.settle(&mut store);
    b.settle(&mut store);
    a.store_state.set_own(Own { address: None, endpoints: BTreeMap::new(), ..own(1, &[]) });
    a.settle(&mut store);
    assert!(store.keys.keys().all(|key| !key.contains("h1") && !key.contains("red")), "{:?}", store.keys.keys());
    assert_eq!(store.keys.len(), 3);
}

#[test]
fn an_older_word_does_not_undo_a_newer_one() {
    let mut store_state = StoreState::new("/l", own(1, &[]));
    let path = "/l/v1/host/h2";
    store_state.put(path, br#"{"version":1,"address":"192.0.2.2:7370"}"#, (7, 7), 0);
    store_state.put(path, br#"{"version":1,"address":"192.0.2.3:7370"}"#, (5, 5), 0);
    store_state.delete(path, 6);
    assert_eq!(store_state.outcome().members[0].member.address.unwrap().to_string(), "192.0.2.2:7370");
    store_state.delete(path, 8);
    assert!(store_state.outcome().members.is_empty());
}

#[test]
fn too_many_endpoints_hide_no_host_and_own_ones_are_always_kept() {
    let mut store = Fake::default();
    let mut own = Host::new(1, &[("red", RED)]);
    Host::new(2, &[("blue", BLUE)]).settle(&mut store);
    own.settle(&mut store);
    // All of a store's endpoints come before its hosts.
    let crowd = (0..=MOST_ENDPOINTS as u32).map(|n| {
        let [_, a, b, c] = n.to_be_bytes();
        format!("/l/v1/endpoint/a/02:ff:00:{a:02x}:{b:02x}:{c:02x}")
    });
    let entry = br#"{"version":1,"host":"h2","name":"e"}"#;
    for path in crowd {
        own.store_state.put(&path, entry, (store.revision, store.revision), 0);
    }
    for n in 0..3 {
        store.put(&format!("/l/v1/host/late{n}"), br#"{"version":1,"address":"192.0.2.9:7370"}"#, 0);
    }
    for (path, (value, revision, lease, since)) in &store.keys {
        own.store_state.put(path, value, (*since, *revision), *lease);
    }
    let outcome = own.store_state.outcome();
    assert!(outcome.members.iter().any(|known| known.member.name == "late0"), "{:?}", outcome.refused);
    assert!(outcome.refused.iter().any(|why| why.contains("other endpoints")), "{:?}", outcome.refused);
    assert!(own.holds("red", RED));
    // Of its own there is always room for what is new.
    let path = "/l/v1/endpoint/red/02:00:00:00:00:02";
    own.store_state.set_own(super::tests::own(1, &[("red", RED), ("red", BLUE)]));
    own.store_state.put(path, br#"{"version":1,"host":"h1","name":"red2"}"#, (store.revision, store.revision), 0);
    assert!(own.holds("red", BLUE));
    own.store_state.delete(path, store.revision + 1);
    // What goes makes room, for as much.
    let next = store.revision + 1;
    for _ in 0..2 {
        own.store_state.delete("/l/v1/endpoint/a/02:ff:00:00:00:00", next);
    }
    for n in 0..2 {
        own.store_state.put(&format!("/l/v1/endpoint/z/02:00:00:00:00:0{n}"), entry, (next, next), 0);
    }
    assert_eq!(own.place("z", Mac([2, 0, 0, 0, 0, 0])).as_deref(), Some("h2"));
    assert_eq!(own.place("z", Mac([2, 0, 0, 0, 0, 1])), None);
    // That there may be room for what was left out is said, and everything read anew knows.
    assert!(own.store_state.has_room());
    own.read(&store);
    assert!(!own.store_state.has_room());
    assert_eq!(own.store_state.outcome().refused.iter().find(|why| why.contains("other endpoints")), None);
    // Hosts are bounded for themselves.
    for n in 0..MOST_HOST_ENTRIES {
        let host = format!(r#"{{"version":1,"address":"10.{}.{}.1:7370"}}"#, n >> 8, n & 0xff);
        own.store_state.put(&format!("/l/v1/host/crowd{n}"), host.as_bytes(), (next, next), 0);
    }
    assert!(own.store_state.outcome().refused.iter().any(|why| why.contains("other entries of hosts")));
    assert!(!own.store_state.has_room());
    // Whose endpoint is wanted here is there: that is known, so that it is not tried for ever.
    own.store_state.set_own(super::tests::own(1, &[("red", RED), ("blue", BLUE)]));
    own.store_state.delete("/l/v1/alive/h2", next);
    assert!(own.store_state.next_write().is_some_and(|write| write.conditions.len() == 2), "it is claimed");
    let alive = br#"{"version":1,"from":"d@n2"}"#;
    own.store_state.put("/l/v1/alive/crowd1", alive, (next, next), 5);
    own.store_state.put_looked_at("/l/v1/alive/h2", alive, (next, next), 5);
    assert_eq!(own.store_state.next_write(), None);
}
