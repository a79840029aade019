use super::*;
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
