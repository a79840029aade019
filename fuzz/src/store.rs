//! Any bytes as what others have written into a store: no panic, what is understood is written as
//! it was read, whatever is wrong is refused by name, everybody is at one place, and a host that is
//! told the truth about its writes comes to an end of them.

// The very modules of the daemon, which is no library.
#[allow(dead_code)]
#[path = "../../levada/src/cluster/directory/entry.rs"]
mod entry;
#[allow(dead_code)]
#[path = "../../levada/src/cluster/directory/store_state.rs"]
mod store_state;

use datapath::wire::Mac;
use entry::{Entry, Key, Told};
use std::collections::BTreeSet;
use store_state::{Own, StoreState};

const PREFIX: &str = "/l";

/// `data` is lines of a key, without what all keys begin with, a space, and a value; without a
/// space, the key is deleted.
pub fn run(data: &[u8]) {
    let place = |byte: u8| {
        (("red".to_owned(), Mac([2, 0, 0, 0, 0, byte])), Told { name: "red1".to_owned(), ..Told::default() })
    };
    let own = Own {
        host: "h1".to_owned(),
        from: "d@n".to_owned(),
        address: Some(([192, 0, 2, 1], 7370).into()),
        vtep: Some([192, 0, 2, 1].into()),
        endpoints: [place(1), place(2)].into(),
    };
    let mut store_state = StoreState::new(PREFIX, own);
    store_state.set_lease(7);
    let mut revision = 0;
    for line in data.split(|&byte| byte == b'\n') {
        revision += 1;
        let (key, value) = match line.iter().position(|&byte| byte == b' ') {
            Some(at) => (&line[..at], Some(&line[at + 1..])),
            None => (line, None),
        };
        let path = entry::root(PREFIX) + &String::from_utf8_lossy(key);
        if let Ok(key) = Key::read(PREFIX, &path) {
            assert_eq!(key.path(PREFIX), path, "a key is written in one way");
            if let Some(Ok(entry)) = value.map(|value| Entry::read(&key, value)) {
                assert_eq!(Entry::read(&key, &entry.write()), Ok(entry));
            }
        }
        match value {
            Some(value) => store_state.put(&path, value, (revision, revision), 0),
            None => store_state.delete(&path, revision),
        }
    }
    let mut writes = 0;
    while let Some(write) = store_state.next_write() {
        (revision, writes) = (revision + 1, writes + 1);
        assert!(writes <= data.len() + 8, "it never ends: {write:?}");
        let path = write.key.path(PREFIX);
        match &write.value {
            Some(value) => store_state.put(&path, value, (revision, revision), if write.leased { 7 } else { 0 }),
            None => store_state.delete(&path, revision),
        }
    }
    let outcome = store_state.outcome();
    assert!(outcome.refused.len() <= store_state::MOST_SAID && outcome.refused.len() <= outcome.refusals);
    let (mut addresses, mut places) = (BTreeSet::new(), outcome.held.clone());
    for known in &outcome.members {
        assert!(known.member.name != "h1" && addresses.insert(known.member.address), "{known:?}");
        for remote in &known.member.endpoints {
            assert!(!remote.macs.is_empty());
            for &mac in &remote.macs {
                assert!(places.insert((remote.tenant.clone(), mac)), "{remote:?} is in two places");
            }
        }
        for service in &known.member.services {
            let place = (service.tenant.clone(), service.mac());
            assert!(service.mac.is_some() && places.insert(place), "{service:?} is in two places");
        }
    }
}
