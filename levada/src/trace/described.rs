//! A frame that an operator describes, made into bytes.

use crate::api::trace::Described;
use control::plan::Plan;
use datapath::frame::MAX_FRAME;
use datapath::offload::Offload;
use datapath::program::{EndpointId, PortId};
use datapath::wire::Mac;
use datapath::wire::build::{arp_request, eth};
use std::net::{IpAddr, SocketAddr};

/// The longest payload that is built: what fits into an IP packet behind the longest headers.
const MOST_PAYLOAD: u32 = 65_535 - 60 - 60;
/// The source address of a described frame from the uplink, where none is given: a locally
/// administered one that nobody has declared.
const STRANGER: Mac = Mac([0x02, 0, 0, 0, 0xff, 0xfe]);

/// Where a described frame comes in, and its bytes.
#[derive(Debug)]
pub struct Made {
    /// Its switch, by its place in the plan.
    pub switch: usize,
    /// The port.
    pub port: PortId,
    /// The frame.
    pub bytes: Vec<u8>,
    /// What is yet to be done with it.
    pub offload: Offload,
}

impl Described {
    /// Makes the frame.
    ///
    /// # Errors
    /// What is wrong with the description.
    pub fn make(&self, plan: &Plan) -> Result<Made, String> {
        let (switch, port, declared) = place(plan, &self.from)?;
        if let Some(hex) = &self.hex {
            return Ok(Made { switch, port, bytes: bytes(hex)?, offload: Offload::default() });
        }
        let mac = |text: &String| text.parse::<Mac>().map_err(|error| error.to_string());
        let source = match (&self.source, declared, self.from.ends_with("/uplink")) {
            (Some(text), _, _) => mac(text)?,
            (None, Some(mac), _) => mac,
            (None, None, true) => STRANGER,
            (None, None, false) => {
                return Err(format!("{} has declared no MAC address: give one with --source", self.from));
            }
        };
        let [kind, one, two] = &self.what[..] else {
            return Err(
                "the frame is described as: tcp|udp 10.0.0.1:1000 10.0.0.2:80, icmp|arp 10.0.0.1 10.0.0.2".to_owned()
            );
        };
        if kind == "arp" {
            return self.finish(switch, port, arp_request(source, v4(one)?, v4(two)?));
        }
        let to = match &self.to {
            None => {
                return Err(
                    "the destination is missing: give it with --to MAC, or --to and an endpoint's path".to_owned()
                );
            }
            Some(path) if path.contains('/') => {
                let (_, _, mac) = place(plan, path)?;
                mac.ok_or_else(|| format!("{path} has declared no MAC address: give one with --to"))?
            }
            Some(text) => mac(text)?,
        };
        let length = self.length.unwrap_or(0);
        if length > MOST_PAYLOAD {
            return Err(format!("a payload of {length} bytes is too long: {MOST_PAYLOAD} is the most"));
        }
        let payload = vec![0; length as usize];
        let (ports, ends) = if kind == "icmp" {
            (None, (address(one)?, address(two)?))
        } else {
            let (one, two) = (socket(one)?, socket(two)?);
            (Some((one.port(), two.port())), (one.ip(), two.ip()))
        };
        if ends.0.is_ipv4() != ends.1.is_ipv4() {
            return Err(format!("{} and {} are of two families", ends.0, ends.1));
        }
        let frame = eth(source, to).ip(ends.0, ends.1);
        let frame = match (kind.as_str(), ports) {
            ("tcp", Some((from, to))) => frame.tcp(from, to, 1),
            ("udp", Some((from, to))) => frame.udp(from, to),
            ("icmp", None) => frame.icmp(if ends.0.is_ipv4() { 8 } else { 128 }, 0, 1),
            _ => return Err(format!("\"{kind}\" is none of tcp, udp, icmp and arp")),
        };
        self.finish(switch, port, frame.payload(payload))
    }

    fn finish(&self, switch: usize, port: PortId, mut frame: datapath::wire::build::Build<'_>) -> Result<Made, String> {
        match self.vlan {
            Some(vlan @ 0..=4095) => frame = frame.vlan(vlan),
            Some(vlan) => return Err(format!("VLAN {vlan} is not in 0 to 4095")),
            None => {}
        }
        if let Some(gso) = self.gso {
            frame = frame.gso(gso.max(1));
        }
        let mut bytes = Vec::new();
        let offload = frame.write(&mut bytes);
        Ok(Made { switch, port, bytes, offload })
    }
}

/// The switch and port of a path, and the first MAC address that is declared there.
fn place(plan: &Plan, path: &str) -> Result<(usize, PortId, Option<Mac>), String> {
    for (place, switch) in plan.switches.iter().map(|(id, switch)| (id as usize, switch)) {
        if path.strip_suffix("/uplink") == Some(&switch.name) {
            let uplink = switch.program.uplink.as_ref();
            return uplink
                .map(|u| (place, u.port(), None))
                .ok_or_else(|| format!("switch {} has no uplink", switch.name));
        }
        for (id, endpoint) in switch.program.endpoints.iter() {
            if switch.endpoint_path(EndpointId(id)) == path {
                return Ok((place, endpoint.port, endpoint.identity.macs.first().copied()));
            }
        }
    }
    Err(format!(
        "there is no \"{path}\": write SWITCH/TENANT/ENDPOINT or SWITCH/uplink; levada show lists what there is"
    ))
}

fn bytes(hex: &str) -> Result<Vec<u8>, String> {
    let digits: Vec<u8> = hex.bytes().filter(|b| !b.is_ascii_whitespace() && *b != b':').collect();
    let byte = |pair: &[u8]| {
        let pair = std::str::from_utf8(pair).ok().filter(|pair| pair.len() == 2 && !pair.starts_with('+'));
        pair.and_then(|pair| u8::from_str_radix(pair, 16).ok())
            .ok_or("the frame is not written in pairs of hexadecimal digits")
    };
    let bytes: Vec<u8> = digits.chunks(2).map(byte).collect::<Result<_, _>>()?;
    match bytes.len() {
        1..=MAX_FRAME => Ok(bytes),
        length => Err(format!("a frame has 1 to {MAX_FRAME} bytes, not {length}")),
    }
}

fn address(text: &str) -> Result<IpAddr, String> {
    text.parse().map_err(|_| format!("\"{text}\" is no IP address"))
}

fn v4(text: &str) -> Result<std::net::Ipv4Addr, String> {
    text.parse().map_err(|_| format!("\"{text}\" is no IPv4 address"))
}

fn socket(text: &str) -> Result<SocketAddr, String> {
    text.parse().map_err(|_| format!("\"{text}\" is no address with a port: write 10.0.0.1:80 or [fd00::1]:80"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use datapath::frame::Pool;
    use datapath::switch::Switch;
    use datapath::units::Instant;

    const FILE: &str = "[daemon]\nname = \"t\"\n[[switch]]\nname = \"s1\"\n[[switch.tenant]]\nname = \"red\"\n\
        [[switch.tenant.endpoint]]\nname = \"a\"\nport = \"tap://a\"\nmac = \"02:00:00:00:00:01\"\nip = \"10.0.0.1\"\n\
        [[switch.tenant.endpoint]]\nname = \"b\"\nport = \"tap://b\"\nmac = \"02:00:00:00:00:02\"\n\
        [[switch.tenant.endpoint]]\nname = \"c\"\nport = \"tap://c\"\n";

    fn described(words: &str) -> Described {
        let text = |text: &str| Some(text.to_owned());
        Described {
            from: "s1/red/a".into(),
            to: text("s1/red/b"),
            what: words.split_whitespace().map(str::to_owned).collect(),
            ..Described::default()
        }
    }

    #[test]
    fn what_is_described_is_what_the_switch_explains() {
        let plan = control::load(FILE).plan.unwrap();
        let switch = Switch::new(&plan.switches[0].program, 1).unwrap();
        let hex = "02:00:00:00:00:02 020000000001 88b5 00".to_owned();
        let whole = Described { from: "s1/red/a".into(), hex: Some(hex), ..Described::default() };
        let long = Described { length: Some(4000), gso: Some(1400), ..described("tcp 10.0.0.1:5 10.0.0.2:80") };
        for (described, said) in [
            (described("udp 10.0.0.1:5 10.0.0.2:6"), "to s1/red/b, which has declared 02:00:00:00:00:02"),
            (described("udp 10.0.0.9:5 10.0.0.2:6"), "refused (spoofed-ipv4)"),
            (described("udp [fd00::1]:5 [fd00::2]:6"), "refused (spoofed-ipv6)"),
            (described("icmp 10.0.0.1 10.0.0.2"), "ICMP type 8"),
            (described("arp 10.0.0.1 10.0.0.2"), "ARP of 10.0.0.1 about 10.0.0.2"),
            (long, "in 3 segments"),
            (whole, "EtherType 0x88b5; 15 bytes"),
        ] {
            let made = described.make(&plan).unwrap();
            let mut pool = Pool::new(plan.pool);
            let frame = pool.alloc_from(&made.bytes).unwrap();
            pool.meta_mut(&frame).offload = made.offload;
            let frame_trace = switch.explain(&pool, Instant(1), made.port, &frame);
            let text = super::super::Traced::new(&plan, made.switch, None, &frame_trace).text();
            assert!(text.contains(said), "{described:?}: {text}");
        }
    }

    #[test]
    fn what_cannot_be_made_is_refused_in_words() {
        let plan = control::load(FILE).plan.unwrap();
        let with = |change: fn(&mut Described)| {
            let mut described = described("tcp 10.0.0.1:5 10.0.0.2:80");
            change(&mut described);
            described.make(&plan).map(|made| made.bytes).unwrap_err()
        };
        assert!(with(|d| d.from = "s1/red/x".into()).contains("there is no \"s1/red/x\""));
        assert!(with(|d| d.from = "s1/uplink".into()).contains("no uplink"));
        assert!(with(|d| d.from = "s1/red/c".into()).contains("--source"));
        assert!(with(|d| d.to = None).contains("--to"));
        assert!(with(|d| d.to = Some("02:00".into())).contains("02:00"));
        assert!(with(|d| d.what[0] = "sctp".into()).contains("none of tcp"));
        assert!(with(|d| d.what[1] = "10.0.0.1".into()).contains("no address with a port"));
        assert!(with(|d| d.what[2] = "[fd00::1]:1".into()).contains("two families"));
        assert!(with(|d| d.length = Some(70_000)).contains("too long"));
        assert!(with(|d| d.hex = Some("0g".into())).contains("hexadecimal"));
        assert!(with(|d| d.hex = Some("\u{e9}\u{e9}".into())).contains("hexadecimal"));
        assert!(with(|d| d.vlan = Some(4096)).contains("4096"));
    }
}
