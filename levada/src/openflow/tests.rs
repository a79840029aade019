use super::*;
use crate::metrics::CONTENT_TYPE;
use crate::metrics::tests::read;
use openflow::wire::{
    Features, Field, Kind, Match, Message, Multipart, PacketIn, Request, Role, Stream as Messages, VERSION,
};
use tokio::net::UnixStream;

/// A configuration with these backends, by the last byte of their addresses.
fn config(backends: &[u8]) -> OpenFlow {
    let mut text =
        "[openflow]\nname = \"t\"\n[[openflow.service]]\nname = \"web\"\naddress = \"10.0.0.100:80\"\n".to_owned();
    for b in backends {
        text += &format!(
            "[[openflow.service.backend]]\nname = \"b{b}\"\nip = \"10.0.0.{b}\"\nmac = \"02:00:00:00:00:{b:02x}\"\n"
        );
    }
    ::control::load_openflow(&text).config.unwrap()
}

fn house(config: OpenFlow) -> Rc<House> {
    let rules = Arc::new(Rules::of(&config));
    Rc::new(House {
        balancer: RefCell::new(Balancer::new(&config, &rules, 1)),
        config: RefCell::new(config),
        rules: RefCell::new(rules),
        revision: RefCell::new(0),
        switches: RefCell::default(),
        seen: RefCell::default(),
        verdicts: Verdicts::default(),
        start: std::time::Instant::now(),
        seed: 1,
        log: Log::new("t", Format::Text),
    })
}

/// A switch's end of a connection.
struct Played(UnixStream, Messages);

impl Played {
    async fn send(&self, xid: u32, message: &Message) {
        let mut bytes = Vec::new();
        message.write(xid, &mut bytes);
        self.0.writable().await.unwrap();
        assert_eq!(self.0.try_write(&bytes).unwrap(), bytes.len());
    }

    async fn next(&mut self) -> (u32, Message) {
        loop {
            if let Some(bytes) = self.1.next(true).unwrap() {
                return Message::read(bytes).unwrap();
            }
            let mut buffer = [0; 4096];
            self.0.readable().await.unwrap();
            match self.0.try_read(&mut buffer) {
                Ok(count) => assert_eq!(self.1.add(&buffer[..count]), count),
                Err(error) => assert_eq!(error.kind(), io::ErrorKind::WouldBlock),
            }
        }
    }

    /// Does as it is told until all rules are there.
    async fn settle(&mut self) {
        let mut barriers = 0;
        while barriers < 2 {
            let (xid, message) = self.next().await;
            let answer = match message {
                Message::Hello(_) => Message::Hello(1 << VERSION),
                Message::FeaturesRequest => Message::FeaturesReply(Features { datapath: 7, tables: 254, auxiliary: 0 }),
                Message::RoleRequest(_, generation) => Message::RoleReply(Role::Equal, generation),
                Message::MultipartRequest(Request::Groups) => {
                    Message::MultipartReply(Multipart::Groups(Vec::new()), false)
                }
                Message::MultipartRequest(Request::Flows(..)) => {
                    Message::MultipartReply(Multipart::Flows(Vec::new()), false)
                }
                Message::BarrierRequest => {
                    barriers += 1;
                    Message::BarrierReply
                }
                _ => continue,
            };
            self.send(xid, &answer).await;
        }
    }
}

#[test]
fn a_reload_is_heeded_before_the_next_frame() {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let house = house(config(&[1, 2]));
    LocalSet::new().block_on(&runtime, async {
        let (ours, theirs) = UnixStream::pair().unwrap();
        let talking = Rc::clone(&house);
        let talk = tokio::task::spawn_local(async move { talk(&talking, 1, "here", Box::new(ours)).await });
        let mut switch = Played(theirs, Messages::default());
        switch.settle().await;
        // The first backend goes: what was the second is the first now. A frame comes at once.
        house.renew(config(&[2]));
        let mut data = Vec::new();
        let ends = [[2, 0, 0, 0, 0, 9], [2, 0, 0, 0, 1, 0]].map(datapath::wire::Mac);
        let build = datapath::wire::build::eth(ends[0], ends[1]);
        build.ipv4([10, 0, 0, 9].into(), [10, 0, 0, 100].into()).tcp(1000, 80, 1).flags(2).write(&mut data);
        let about = Match::of([Field::new(Kind::IN_PORT, 3_u32)]);
        let cookie = house.rules.borrow().owner | 1;
        switch.send(0, &Message::PacketIn(PacketIn { cookie, table: 0, about, data })).await;
        // By the new rules from here on: first of all they go to the switch.
        let (_, first) = switch.next().await;
        assert_eq!(first, Message::RoleRequest(Role::NoChange, 0));
        drop(switch);
        assert_eq!(talk.await.unwrap(), "it closed the connection");
        assert_eq!(house.balancer.borrow().room().0, 0, "no connection by the rules of before");
    });
}

/// What the control socket answers to a GET: its head and its body.
async fn get(house: &Rc<House>, path: &str) -> (String, String) {
    let (ours, theirs) = UnixStream::pair().unwrap();
    let answering = tokio::task::spawn_local(super::control::answer(Rc::clone(house), ours));
    let request = format!("GET {path} HTTP/1.1\r\nhost: x\r\n\r\n");
    theirs.writable().await.unwrap();
    assert_eq!(theirs.try_write(request.as_bytes()).unwrap(), request.len());
    let (mut bytes, mut buffer) = (Vec::new(), [0; 4096]);
    loop {
        theirs.readable().await.unwrap();
        match theirs.try_read(&mut buffer) {
            Ok(0) => break,
            Ok(count) => bytes.extend(&buffer[..count]),
            Err(error) => assert_eq!(error.kind(), io::ErrorKind::WouldBlock),
        }
    }
    answering.await.unwrap();
    let text = String::from_utf8(bytes).unwrap();
    let (head, body) = text.split_once("\r\n\r\n").expect("a head");
    (head.to_owned(), body.to_owned())
}

#[test]
fn metrics_are_of_services_and_of_switches_also_of_one_that_left() {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let house = house(config(&[1, 2]));
    LocalSet::new().block_on(&runtime, async {
        let (ours, theirs) = UnixStream::pair().unwrap();
        let talking = Rc::clone(&house);
        let talk = tokio::task::spawn_local(async move { talk(&talking, 1, "here", Box::new(ours)).await });
        let mut switch = Played(theirs, Messages::default());
        switch.settle().await;
        while !house.switches.borrow().values().any(|status| status.phase == "ready") {
            sleep(Duration::from_millis(1)).await;
        }
        let (head, body) = get(&house, "/v1/metrics").await;
        assert!(head.starts_with("HTTP/1.1 200 ") && head.contains(CONTENT_TYPE), "{head}");
        let samples = read(&body);
        let of_switch = "{switch=\"0000000000000007\"}";
        let (rules, (_, most)) = (house.switches.borrow()[&1].rules as u64, house.balancer.borrow().room());
        assert!(rules > 0);
        for (name, value) in [
            (format!("levada_openflow_switch_connected{of_switch}"), 1),
            (format!("levada_openflow_switch_ready{of_switch}"), 1),
            (format!("levada_openflow_switch_flows{of_switch}"), rules),
            (format!("levada_openflow_switch_errors_total{of_switch}"), 0),
            ("levada_openflow_connections_limit".to_owned(), u64::from(most)),
            ("levada_service_refused_total{service=\"web\"}".to_owned(), 0),
            ("levada_service_backend_up{service=\"web\",backend=\"b2\"}".to_owned(), 1),
            ("levada_service_backend_connections{service=\"web\",backend=\"b1\",state=\"busy\"}".to_owned(), 0),
        ] {
            assert_eq!(samples.get(&name).map(|sample| *sample as u64), Some(value), "{name}");
        }
        assert!(!samples.keys().any(|key| key.contains("tenant")), "it has none");
        // It goes: `attend` takes it out then.
        drop(switch);
        assert_eq!(talk.await.unwrap(), "it closed the connection");
        house.switches.borrow_mut().clear();
        let samples = read(&get(&house, "/v1/metrics").await.1);
        let connected = samples.get(&format!("levada_openflow_switch_connected{of_switch}"));
        assert_eq!(connected.map(|sample| *sample as u64), Some(0));
        assert!(!samples.keys().any(|key| key.starts_with("levada_openflow_switch_flows")));
    });
}
