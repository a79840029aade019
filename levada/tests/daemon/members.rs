//! Two daemons on hosts of their own that know each other only by an etcd, which is on one of them:
//! their tenants are joined by tunnels, and their agents speak over the same network. The etcd goes
//! away and returns, and a daemon is killed. Needs Debian's `etcd-server` besides.

use crate::agents::Flood;
use crate::privileges::assert_confined;
use crate::restart::Transfer;
use crate::testbed::{Bed, Daemon, skipped, soon, turn};
use crate::tunnels::{TWO, host, hosts, knows_the_way, tunnels};
use rustix::process::Signal;
use serde_json::Value;
use std::io;
use std::process::{Child, Command, Stdio};

/// What the receiver's line carries, and what it promises.
const LINE: &str = "rate = \"20 Mbit/s\"";

/// An etcd that ends with its guard.
pub struct Etcd(Child);

impl Drop for Etcd {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Starts an etcd in a namespace, at its address; `None`, and said so, where there is none.
pub fn etcd(bed: &Bed, space: &str, address: &str, test: &str) -> Option<Etcd> {
    let urls = [2379, 2380].map(|port| format!("http://{address}:{port}"));
    let mut command = Command::new("etcd");
    command
        .args(["--name", "m0", "--data-dir", bed.directory.join("etcd").to_str().unwrap(), "--unsafe-no-fsync"])
        .args(["--listen-client-urls", &urls[0], "--advertise-client-urls", &urls[0], "--listen-peer-urls", &urls[1]])
        .args(["--initial-advertise-peer-urls", &urls[1], "--initial-cluster", &format!("m0={}", urls[1])])
        .stdout(Stdio::null())
        .stderr(std::fs::File::create(bed.directory.join("etcd.log")).unwrap());
    match bed.space(space).run(|| command.spawn()).unwrap() {
        Ok(child) => Some(Etcd(child)),
        Err(error) if error.kind() == io::ErrorKind::NotFound => {
            skipped(test, "there is no etcd: install etcd-server (tools/setup peers)");
            None
        }
        Err(error) => panic!("{error}"),
    }
}

/// The host of `tunnels.rs`, which knows nobody by its file. The host's own traffic, which the
/// store and the agents need, has its share.
fn unacquainted(bed: &Bed, number: u8) -> String {
    let text = host(&number.to_string(), "0");
    let (text, _) = text.split_once("[[cluster.member]]").unwrap();
    let directory = bed.directory.join("cluster");
    let text = text
        .replace("vlan = \"untagged\"\n", "vlan = \"untagged\"\nguarantee = \"1 Mbit/s\"\n")
        .replace("vni = 5001\n", "vni = 5001\nguarantee = \"12 Mbit/s\"\n")
        .replace("vni = 5002\n", "vni = 5002\nguarantee = \"3 Mbit/s\"\n");
    let text = if number == 1 { text.replace("rate = \"1 Gbit/s\"", LINE) } else { text };
    format!(
        "{text}listen = \"192.0.2.{number}:7370\"\ndirectory = \"{}\"\n[cluster.etcd]\nendpoints = [\"http://192.0.2.1:2379\"]\n",
        directory.display()
    )
}

/// Certificates for both; the first is the authority.
fn certify([one, two]: [&Bed; 2]) {
    let at = |bed: &Bed| bed.directory.join("cluster").display().to_string();
    let run = |bed: &Bed, words: &[&str]| {
        let output = bed.run(&[&["cluster", words[0], "-d", &at(bed)], &words[1..]].concat());
        assert!(output.status.success(), "{words:?}: {}", String::from_utf8_lossy(&output.stderr));
    };
    run(one, &["init", "--host", "host1"]);
    let via = format!("{} cluster sign -d {}", env!("CARGO_BIN_EXE_levada"), at(one));
    run(two, &["join", "--host", "host2", "--via", &via]);
}

/// A daemon in the network of its host.
fn start(bed: &Bed, text: &str, is_takeover: bool) -> Daemon {
    bed.space("host").run(|| if is_takeover { bed.take_over(text) } else { bed.start(text) }).unwrap()
}

fn agent(bed: &Bed) -> Value {
    let output = bed.run(&["show", "agents", "--json"]);
    let reply: Value = serde_json::from_slice(&output.stdout).unwrap_or_default();
    reply["agents"][0].clone()
}

/// Whether the limit is at most this, in Mbit/s.
fn is_below(limit: &Value, mbit: u64) -> bool {
    limit["rate_bps"].as_u64().is_some_and(|rate| rate < mbit * 1_000_000)
}

/// Whether the second host holds its flood by what the first has said.
fn is_held(one: &Bed, two: &Bed) -> bool {
    let (receiver, sender) = (agent(one), agent(two));
    let own = sender["limited"].as_array().cloned().unwrap_or_default();
    receiver["limits"].as_array().is_some_and(|all| all.iter().any(|limit| is_below(limit, 12)))
        && own.iter().any(|limit| limit["from"] == "s1/blue/blue1" && is_below(limit, 12))
}

/// Whether a host says that it reaches the store.
fn is_store_there(bed: &Bed) -> Option<bool> {
    let output = bed.run(&["show", "cluster", "--json"]);
    let reply: Value = serde_json::from_slice(&output.stdout).unwrap_or_default();
    reply["cluster"]["etcd"]["connected"].as_bool()
}

#[test]
fn hosts_that_know_each_other_by_an_etcd_have_tunnels_and_hold_floods() {
    const TEST: &str = "hosts_that_know_each_other_by_an_etcd_have_tunnels_and_hold_floods";
    let Some(_turn) = turn(TEST) else { return };
    let [one, two] = hosts();
    one.ip("host", "link set lo up").unwrap();
    let Some(store) = etcd(&one, "host", "192.0.2.1", TEST) else { return };
    certify([&one, &two]);
    let texts = [unacquainted(&one, 1), unacquainted(&two, 2)];
    let mut first = start(&one, &texts[0], false);
    let mut second = start(&two, &texts[1], false);
    soon("both know the way", || knows_the_way(&one) && knows_the_way(&two));
    let named = |bed: &Bed| tunnels(bed)["hosts"][0]["host"].as_str().map(str::to_owned);
    assert_eq!([named(&one), named(&two)], [Some("host2".to_owned()), Some("host1".to_owned())]);
    let _red = two.echo("red", TWO);
    soon("red is joined", || one.ask("red", TWO, 1) == 1);
    // The process that goes on asks the store anew.
    let transfer = Transfer::over((&one, "red"), (&two, "red"), TWO);
    transfer.goes_on();
    let next = start(&one, &texts[0], true);
    assert!(first.wait().success(), "{}", first.log());
    first = next;
    soon("the way is known again", || knows_the_way(&one));
    transfer.goes_on();
    transfer.end();
    let names = assert_confined(&first);
    let with_others = ["levada-peers", "levada-store", "levada-routes"];
    assert!(with_others.iter().all(|name| names.contains_key(*name)), "{names:?}");
    // Blue sends three times what the receiver's line carries, beside red within its guarantee.
    let _victim = Flood::new(&two, "red", 1);
    let flood = Flood::new(&two, "blue", 5);
    soon("the flood is held where it is sent", || is_held(&one, &two));
    soon("drops are named", || second.endpoint("blue1")["drops"]["pair-limit"].as_u64().unwrap_or(0) > 0);
    let drops = first.show()["switches"][0]["uplink"]["drops"].clone();
    assert!(drops["malformed"].is_null() && drops["bad-vni"].is_null(), "{drops}");

    // Without the store frames pass, floods are held, and the operator is told.
    drop(store);
    soon("the store is missed", || is_store_there(&one) == Some(false) && is_store_there(&two) == Some(false));
    drop(flood);
    soon("nobody is limited", || agent(&two)["limited"].as_array().is_some_and(Vec::is_empty));
    let _flood = Flood::new(&two, "blue", 5);
    soon("the next flood is held without a store", || is_held(&one, &two));
    let transfer = Transfer::over((&one, "red"), (&two, "red"), TWO);
    transfer.goes_on();
    let Some(_store) = etcd(&one, "host", "192.0.2.1", TEST) else { return };
    soon("the store is there again", || is_store_there(&one) == Some(true) && is_store_there(&two) == Some(true));

    // Who holds the flood is killed: the next process has its part from the store, and the tunnels
    // and the limit with it.
    assert!(!second.end(Signal::KILL).success());
    second = start(&two, &texts[1], false);
    soon("the way is known to the next process", || knows_the_way(&two));
    transfer.goes_on();
    transfer.end();
    soon("the flood is held by the next process", || is_held(&one, &two));
    soon("drops are named again", || second.endpoint("blue1")["drops"]["pair-limit"].as_u64().unwrap_or(0) > 0);
}
