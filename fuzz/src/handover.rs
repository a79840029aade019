//! Any bytes as what the other process of a takeover says: no panic, what is understood is written
//! as it was read, and a state that lies about a switch leaves one that works: it can be exported,
//! imported again and run.

// The very modules of the daemon, which is no library.
#[allow(dead_code, reason = "what the daemon writes and this target only reads")]
#[path = "../../levada/src/handover/early.rs"]
mod early;
#[path = "../../levada/src/handover/message.rs"]
mod message;
#[path = "../../levada/src/guests/vde_server/papers.rs"]
mod papers;
#[path = "../../levada/src/guests/front_ends/papers.rs"]
mod sessions;
#[allow(dead_code, reason = "what the daemon writes and this target only reads")]
#[path = "../../levada/src/handover/state.rs"]
mod state;

use datapath::frame::{Pool, PoolLimits};
use datapath::program::{PortId, Program};
use datapath::switch::Switch;
use datapath::units::Instant;
use datapath::vcc::early::Part;
use datapath::vcc::saved::BYTES;
use early::Early;
use message::{Message, receive, send};
use papers::Papers;
use ports::vhost::{Offer, Session};
use sessions::SessionPaper;
use state::{CONNECTIONS_BYTES, MESSAGE_BYTES, State};

/// What goes on after the takeover.
const HOST: &str = r#"
[daemon]
name = "t"
[[switch]]
name = "s1"
[switch.uplink]
port = "tap://up"
rate = "1 Gbit/s"
[[switch.tenant]]
name = "red"
vlan = 10
vcc = "dctcp"
limit = "400 Mbit/s"
[[switch.tenant.endpoint]]
name = "red1"
port = "tap://red1"
limit = "10 Mbit/s"
[[switch.tenant.endpoint]]
name = "red2"
port = "tap://red2"
trunk = true
[[switch.tenant.endpoint]]
name = "red3"
port = "tap://red3"
mac = "02:00:00:00:00:03"
ip = "10.0.0.3"
[[switch.tenant.service]]
name = "web"
address = ["10.0.0.100:80", "udp://10.0.0.100:53"]
[[switch.tenant.service.backend]]
name = "red3"
port = 8080
[[switch]]
name = "s2"
ingress = "police"
[switch.uplink]
port = "tap://up2"
rate = "1 Gbit/s"
[[switch.tenant]]
name = "blue"
vlan = "untagged"
[[switch.tenant.endpoint]]
name = "blue1"
port = "tap://blue1"
guarantee = "10 Mbit/s"
"#;

/// A broadcast frame, as short as can be.
const FRAME: [u8; 60] = {
    let mut frame = [0xff; 60];
    frame[6] = 2;
    frame
};

/// `data` is what comes over the socket.
pub fn run(data: &[u8]) {
    let (mut rest, mut room, mut early) = (data, CONNECTIONS_BYTES, Vec::new());
    while let Ok(mut message) = receive(&mut rest) {
        let mut written = Vec::new();
        send(&mut written, &message).expect("memory takes everything");
        assert_eq!(receive(&mut &written[..]).expect("what was written is read"), message);
        match &mut message {
            Message::Early(some) => {
                if some.read(&mut rest, &mut room).is_err() {
                    return;
                }
                early.push(some.clone());
            }
            Message::State { state, plugs, machines } => {
                machines.iter().for_each(goes_on_with);
                assert_eq!(plugs.descriptors(), 2 * plugs.clients.len());
                if state.read_connections(&mut rest).is_err() {
                    return;
                }
                goes_on(std::mem::take(&mut early), state);
            }
            _ => {}
        }
    }
}

/// A session that is told anything refuses it by name, or is one. Descriptors are missing.
fn goes_on_with(machine: &SessionPaper) {
    let offer = Offer { pairs: 2, offload: true, must_be_sealed: true, mtu: 1500 };
    let mut session = Session::new(offer).expect("a process has some descriptors");
    let fault = machine.messages.iter().find_map(|(bytes, _)| session.learn(bytes, Vec::new()).err());
    assert!(fault.is_none_or(|fault| !fault.to_string().is_empty()));
    assert!(session.retold().is_ok() && session.port().is_ok_and(|port| port.is_none()), "no ring was kicked");
    assert!(machine.descriptors() > 0);
}

/// Connections that cross early are the same as those that cross at the end.
fn crosses_early(switch: &Switch, program: &Program, now: Instant) {
    let mut next = Switch::new(program, 7).expect("a sound program");
    let (mut parts, mut from) = (Vec::new(), Some(0));
    while let Some(place) = from {
        let mut part = Part::new(place);
        switch.vcc().write_part(now, &mut part);
        next.import_early(now, 0, part.records());
        from = part.next();
        parts.push(part);
    }
    let known = switch.export_since(now, &parts);
    assert!(known.vcc.is_empty(), "nothing has changed");
    let imported = next.import(now, 0, &known).expect("the own version");
    assert_eq!((imported.ignored, imported.vcc), (0, switch.vcc().export(now).len() / BYTES));
    assert_eq!(next.vcc().connections().len() as usize, imported.vcc);
}

fn goes_on(early: Vec<Early>, state: &mut State) {
    let plan = control::load(HOST).plan.expect("a good configuration");
    let now = Instant(1_000_000_000);
    let away_ns = state.at_ns;
    let mut switches: Vec<Switch> =
        plan.switches.values().map(|switch| Switch::new(&switch.program, 7).expect("a sound program")).collect();
    for some in early {
        let age_ns = now.0.wrapping_sub(some.at_ns);
        if let Some((number, records)) = some.of(&plan) {
            switches[number].import_early(now, age_ns, &records);
        }
    }
    for (number, known) in state.known(&plan) {
        let _other_version = switches[number].import(now, away_ns, &known);
    }
    for (switch, of) in switches.iter_mut().zip(plan.switches.values()) {
        switch.forget_early(now);
        crosses_early(switch, &of.program, now);
    }
    let mut exported: Vec<_> = switches.iter().map(|switch| switch.export(now)).collect();
    let mut again = State::new(now.0, &plan, &mut exported);
    let known = again.known(&plan);
    assert_eq!(known.len(), switches.len(), "every switch is known by its name");
    for (number, known) in known {
        let mut next = Switch::new(&plan.switches[number].program, 7).expect("a sound program");
        let imported = next.import(now, 0, &known).expect("the own version");
        assert_eq!(imported.ignored, 0, "what a switch exports fits its program");
    }
    let mut pool = Pool::new(PoolLimits { small: 64, medium: 0, large: 4 });
    for switch in &mut switches {
        for port in 0..3 {
            let frame = pool.alloc_from(&FRAME).expect("there is room");
            switch.rx(&mut pool, now, PortId(port), frame);
        }
        let mut now = now;
        for _ in 0..8 {
            while let Some((_, frame)) = switch.tx(&mut pool, now) {
                pool.free(frame);
            }
            let Some(due) = switch.poll_timeout() else { break };
            now = due.max(now);
        }
        switch.clear(&mut pool);
    }
    assert_eq!(pool.in_use(), 0, "no frame is lost");
}
