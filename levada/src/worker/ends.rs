//! Connections by their ends, as people name them.

use datapath::wire::FlowKey;
use std::net::{IpAddr, SocketAddr};

/// Ends of connections: which are wanted.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Wanted(Vec<(IpAddr, Option<u16>)>);

impl Wanted {
    /// Of one end or two, by their texts.
    ///
    /// # Errors
    /// In words: these are no such.
    pub fn new(ends: &[String]) -> Result<Wanted, String> {
        let end = |text: &String| match (text.parse::<IpAddr>(), text.parse::<SocketAddr>()) {
            (Ok(ip), _) => Ok((ip, None)),
            (_, Ok(end)) => Ok((end.ip(), Some(end.port()))),
            _ => Err(format!("\"{text}\" is no IP address, nor one with a port")),
        };
        if !(1..=2).contains(&ends.len()) {
            return Err("a connection has two ends: name one of them or both".to_owned());
        }
        ends.iter().map(end).collect::<Result<_, _>>().map(Wanted)
    }

    /// The one connection that is meant, in either direction, where both ends are whole.
    #[must_use]
    pub fn flows(&self) -> Option<[FlowKey; 2]> {
        let &[(a, Some(a_port)), (b, Some(b_port))] = &self.0[..] else { return None };
        let flow = FlowKey::of_tcp([SocketAddr::new(a, a_port), SocketAddr::new(b, b_port)])?;
        Some([flow, flow.reversed()])
    }

    /// Whether a connection is one of these.
    #[must_use]
    pub fn is(&self, flow: &FlowKey) -> bool {
        let ends = flow.ends();
        let at = |(ip, port): (IpAddr, Option<u16>), end: (IpAddr, u16)| {
            ip == end.0 && port.is_none_or(|port| port == end.1)
        };
        match self.0[..] {
            [one] => ends.into_iter().any(|end| at(one, end)),
            [one, other] => [[0, 1], [1, 0]].into_iter().any(|[a, b]| at(one, ends[a]) && at(other, ends[b])),
            _ => false,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn connections_are_asked_for_by_one_end_or_both() {
        let flow = |one: &str, other: &str| FlowKey::of_tcp([one.parse().unwrap(), other.parse().unwrap()]).unwrap();
        let ends = |ends: &[&str]| Wanted::new(&ends.iter().map(|&end| end.to_owned()).collect::<Vec<_>>());
        let (v4, v6) = (flow("10.0.0.1:7", "10.0.0.2:80"), flow("[fd00::1]:7", "[fd00::2]:80"));
        let text = |flow: &FlowKey| flow.ends().map(|(ip, port)| SocketAddr::new(ip, port).to_string());
        assert_eq!(text(&v6), ["[fd00::1]:7", "[fd00::2]:80"]);
        for (asked, of_v4, of_v6) in [
            (&["10.0.0.1"][..], true, false),
            (&["10.0.0.2"], true, false),
            (&["10.0.0.2:80"], true, false),
            (&["10.0.0.2:81"], false, false),
            (&["fd00::2"], false, true),
            (&["[fd00::1]:7", "fd00::2"], false, true),
            (&["10.0.0.2", "10.0.0.1"], true, false),
            (&["10.0.0.1:7", "10.0.0.2:80"], true, false),
            (&["10.0.0.2:80", "10.0.0.1:7"], true, false),
            (&["10.0.0.1:80", "10.0.0.2:7"], false, false),
            (&["10.0.0.1", "10.0.0.1"], false, false),
        ] {
            let wanted = ends(asked).unwrap();
            assert_eq!((wanted.is(&v4), wanted.is(&v6)), (of_v4, of_v6), "{asked:?}");
            if let Some(flows) = wanted.flows() {
                assert_eq!((flows.contains(&v4), flows.contains(&v6)), (of_v4, of_v6), "{asked:?}");
            }
        }
        assert!(ends(&["10.0.0.1:7", "10.0.0.2:80"]).unwrap().flows().is_some());
        assert!(ends(&["10.0.0.1:7", "[fd00::2]:80"]).unwrap().flows().is_none());
        for wrong in [&[][..], &["host"], &["10.0.0.1:99999"], &["10.0.0.1", "10.0.0.2", "10.0.0.3"]] {
            assert!(ends(wrong).is_err(), "{wrong:?}");
        }
    }
}
