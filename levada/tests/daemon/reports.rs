//! Load reports: servers in namespaces tell a daemon in another one, under keys.

use crate::reporter::{Reporter, set_load, signed};
use crate::services::{connect, serve, with_service};
use crate::testbed::{Bed, Daemon, soon, turn};
use crate::traffic::NEIGHBOURS;
use control::report::SIZE;
use rustix::process::Signal;
use std::net::UdpSocket;
use std::path::PathBuf;
use std::time::Duration;

const SERVERS: [&str; 2] = ["b", "c"];

/// A bed whose daemon is in `m`, to which `b` and `c` have a cable each.
struct Scene {
    bed: Bed,
    directory: PathBuf,
    text: String,
}

impl Scene {
    fn new() -> Scene {
        let bed = Bed::new(&["a", "b", "c", "m"]);
        for (n, space) in (1..).zip(SERVERS) {
            bed.ip("m", &format!("link add name to-{space} type veth peer name to-m netns {}", bed.name(space)))
                .unwrap();
            for (space, device, last) in [("m", format!("to-{space}"), 1), (space, "to-m".to_owned(), 2)] {
                bed.ip(space, &format!("address add 10.8.{n}.{last}/24 dev {device}")).unwrap();
                bed.ip(space, &format!("link set {device} up")).unwrap();
            }
        }
        let directory = bed.configuration("").parent().unwrap().to_owned();
        let mut text = with_service(NEIGHBOURS, "loadavg-corrected", SERVERS)
            .replace("name = \"NAME\"\n", "name = \"NAME\"\nreports = \"0.0.0.0:7371\"\n");
        for name in SERVERS {
            let head = format!("[[switch.tenant.service.backend]]\nname = \"{name}\"\n");
            let key = directory.join(name);
            // One connection is a load of 1/64, so that a dozen of them turn no choice.
            text = text.replace(&head, &format!("{head}cores = 64\nkey = {key:?}\n"));
            let made = bed.run(&["key", &format!("s1/home/web/{name}"), key.to_str().unwrap()]);
            assert!(made.status.success(), "{}", String::from_utf8_lossy(&made.stderr));
        }
        Scene { bed, directory, text }
    }

    fn start(&self) -> Daemon {
        self.bed.space("m").run(|| self.bed.start(&self.text)).unwrap()
    }

    fn set_load(&self, name: &str, load: &str) {
        set_load(&self.load_of(name), load);
    }

    fn load_of(&self, name: &str) -> PathBuf {
        self.directory.join(format!("loadavg-{name}"))
    }

    /// `levada report` of `name` in its namespace.
    fn report(&self, name: &str, to: &str, how: &[&str]) -> Reporter {
        Reporter::start(&self.bed, name, &self.directory.join(name), &self.load_of(name), to, how)
    }

    /// A socket in `b`.
    fn socket(&self) -> UdpSocket {
        self.bed.socket("b", "10.8.1.2:0")
    }

    /// The report that `levada report --once` of `b` sends.
    fn record(&self) -> Vec<u8> {
        let socket = self.socket();
        socket.set_read_timeout(Some(Duration::from_secs(10))).unwrap();
        let mut once = self.report("b", &socket.local_addr().unwrap().to_string(), &["--once"]);
        let mut bytes = [0; 100];
        let length = socket.recv(&mut bytes).unwrap();
        assert!(once.0.wait().unwrap().success());
        bytes[..length].to_vec()
    }
}

fn loads(daemon: &Daemon) -> [Option<u64>; 2] {
    let shown = daemon.show_part("services");
    [0, 1].map(|at: usize| shown["services"][0]["backends"][at]["load_milli"].as_u64())
}

fn count(daemon: &Daemon, verdict: &str) -> u64 {
    daemon.show_part("services")["reports"][verdict].as_u64().unwrap()
}

fn all_at(bed: &Bed, letter: u8) {
    assert!(connect(bed).iter().all(|(_, who)| *who == letter), "at {}", letter as char);
}

#[test]
fn the_switch_goes_by_what_servers_report_and_by_nothing_else() {
    let Some(_turn) = turn("the_switch_goes_by_what_servers_report_and_by_nothing_else") else { return };
    let place = Scene::new();
    let bed = &place.bed;
    let mut daemon = place.start();
    serve(bed);
    place.set_load("b", "5.00");
    place.set_load("c", "0.10");
    let to_b = "10.8.1.1";
    let mut first = place.report("b", to_b, &["--every", "200 ms"]);
    let _second = place.report("c", "10.8.2.1:7371", &["--every", "200 ms"]);
    soon("both have reported", || loads(&daemon) == [Some(5000), Some(100)]);
    all_at(bed, b'c');
    place.set_load("b", "0.20");
    place.set_load("c", "6.00");
    soon("both have reported again", || loads(&daemon) == [Some(200), Some(6000)]);
    all_at(bed, b'b');

    // What b says of c, what is no report, and what is of nobody.
    let socket = place.socket();
    let send = |datagram: &[u8]| assert_eq!(socket.send_to(datagram, "10.8.1.1:7371").unwrap(), datagram.len());
    // What `b` would say of `c`, under its own key.
    let forged = signed(&place.directory.join("b"), "s1/home/web/c");
    send(&forged);
    send(&[7; SIZE + 1]);
    let mut foreign = forged;
    foreign[8] ^= 1;
    send(&foreign);
    soon("they are counted", || ["forged", "malformed", "foreign"].map(|verdict| count(&daemon, verdict)) == [1; 3]);
    assert_eq!(loads(&daemon), [Some(200), Some(6000)]);

    // Another process of b's server is believed at once, and its report once only.
    first.end();
    place.set_load("b", "7.00");
    let recorded = place.record();
    assert_eq!(recorded.len(), SIZE);
    send(&recorded);
    soon("it is taken", || loads(&daemon)[0] == Some(7000));
    send(&recorded);
    soon("it is not taken twice", || count(&daemon, "replayed") == 1);
    place.set_load("b", "0.30");
    first = place.report("b", to_b, &["--every", "200 ms"]);
    soon("a restarted reporter is believed", || loads(&daemon)[0] == Some(300));
    send(&recorded);
    soon("what an earlier one said is old", || count(&daemon, "old") == 1);
    assert_eq!(loads(&daemon)[0], Some(300));
    let shown = bed.run(&["show", "services", "--name", bed.name("").trim_end_matches('-')]);
    let shown = String::from_utf8(shown.stdout).unwrap();
    assert!(shown.contains(" taken, 1 malformed, 1 foreign, 1 forged, 1 old, 1 replayed, 0 too-many"), "{shown}");

    // The next process knows no sequences, and takes nothing from before its time.
    first.end();
    daemon = {
        let next = bed.space("m").run(|| bed.take_over(&place.text)).unwrap();
        assert!(daemon.wait().success(), "{}", daemon.log());
        next
    };
    soon("c's reports arrive there", || count(&daemon, "taken") > 0);
    let before = loads(&daemon)[0];
    send(&recorded);
    soon("what the process before took is old", || count(&daemon, "old") == 1);
    assert_eq!(loads(&daemon)[0], before);
    let restarted = place.report("b", to_b, &["--every", "200 ms"]);
    soon("who was not heard is believed", || loads(&daemon)[0] == Some(300));
    restarted.end();
    assert!(daemon.end(Signal::TERM).success());
}
