use super::*;
use control::config::openflow::OpenFlow;

pub(crate) fn config(mode: &str, backends: usize) -> OpenFlow {
    let mut text = format!(
        "[openflow]\nname = \"t\"\nmode = \"{mode}\"\n[[openflow.service]]\nname = \"web\"\naddress = \"10.0.0.100:80\"\npolicy = \"round-robin\"\n"
    );
    for b in 1..=backends {
        text += &format!(
            "[[openflow.service.backend]]\nname = \"b{b}\"\nip = \"10.0.0.{b}\"\nmac = \"02:00:00:00:00:{b:02x}\"\nport = 8080\n"
        );
    }
    let loaded = control::load_openflow(&text);
    loaded.config.unwrap_or_else(|| panic!("{:?}", loaded.problems))
}

/// The same, reached by both versions of IP: front 0 is of IPv4, front 1 of IPv6.
pub(crate) fn of_both_versions(mode: &str, backends: usize) -> OpenFlow {
    let mut config = config(mode, backends);
    let service = &mut config.services[0];
    let six = |last| std::net::Ipv6Addr::new(0xfd00, 0, 0, 0, 0, 0, 0, last);
    let mut address = service.addresses[0];
    address.0.ip = six(0x100).into();
    service.addresses.push(address);
    for (last, backend) in (1..).zip(&mut service.backends) {
        backend.ips.push(six(last).into());
    }
    config
}

#[test]
fn no_flow_sets_or_matches_a_field_of_the_other_version() {
    let four = [Kind::IPV4_SRC, Kind::IPV4_DST, Kind::ICMP_TYPE];
    let six = [Kind::IPV6_SRC, Kind::IPV6_DST, Kind::ICMPV6_TYPE, Kind::ND_TARGET, Kind::ND_TLL];
    for mode in ["reactive", "hash"] {
        let rules = Rules::of(&of_both_versions(mode, 2));
        assert_eq!((rules.fronts.len(), rules.groups.len()), (2, if mode == "hash" { 2 } else { 0 }));
        let clients: [IpAddr; 2] = ["10.0.0.9".parse().unwrap(), "fd00::9".parse().unwrap()];
        let of_connections =
            (0..2).flat_map(|front| rules.flows_of(front, 1, Client { ip: clients[front], port: 9 }).unwrap());
        let mut counts = [0, 0];
        for flow in rules.flows.iter().cloned().chain(of_connections) {
            let set = flow.instructions.iter().flat_map(|one| match one {
                Instruction::Apply(actions) => actions.clone(),
                _ => Vec::new(),
            });
            let set = set.filter_map(|action| match action {
                Action::Set(field) => Some(field.kind),
                Action::Move(_, to) => Some(to),
                _ => None,
            });
            let all: Vec<Kind> = flow.matches.fields.iter().map(|field| field.kind).chain(set).collect();
            let has = [&four[..], &six[..]].map(|kinds| all.iter().any(|kind| kinds.contains(kind)));
            assert!(!has[0] || !has[1], "{flow:?}");
            counts.iter_mut().zip(has).for_each(|(count, has)| *count += usize::from(has));
        }
        assert!(counts[0] > 4 && counts[1] > counts[0], "{counts:?}");
        // Each group translates to addresses of its own version.
        for (id, buckets) in &rules.groups {
            let front = rules.fronts[rules.dealt[id].front];
            assert!(buckets.iter().all(|bucket| matches!(
                bucket.actions[0],
                Action::Ct { nat: Some(Nat::To(ip, 8080)), .. } if ip.is_ipv4() == front.ip.is_ipv4()
            )));
        }
    }
}

#[test]
fn an_echo_is_answered_with_hops_for_the_whole_way_back() {
    let rules = Rules::of(&of_both_versions("hash", 2));
    let answers_with = |kind: Kind, number: u8| {
        let is_answer = |action: &Action| *action == Action::Set(Field::new(kind, number));
        let all = rules.flows.iter().filter_map(|flow| match &flow.instructions[..] {
            [Instruction::Apply(actions)] if actions.iter().any(is_answer) => {
                Some(actions.contains(&Action::SetTtl(64)))
            }
            _ => None,
        });
        all.collect::<Vec<_>>()
    };
    assert_eq!((answers_with(Kind::ICMP_TYPE, 0), answers_with(Kind::ICMPV6_TYPE, 129)), (vec![true], vec![true]));
}

#[test]
fn places_are_dealt_by_weight_and_stay() {
    let counts = |config: &OpenFlow| {
        let rules = Rules::of(config);
        let places = deal(&weights(&config.services[0].backends), &rules.targets[0]);
        let mut counts = vec![0; rules.targets[0].len()];
        places.iter().for_each(|&b| counts[b] += 1);
        (places, counts)
    };
    let three = config("hash", 3);
    let (before, of_three) = counts(&three);
    assert_eq!(of_three.iter().sum::<usize>(), PLACES);
    assert!(of_three.iter().all(|n| (85..=86).contains(n)), "{of_three:?}");
    // A fourth takes its part, and little else moves.
    let (after, of_four) = counts(&config("hash", 4));
    assert_eq!(of_four, [64; 4]);
    let moved = before.iter().zip(&after).filter(|(a, b)| a != b).count();
    assert!(moved <= 64 + 64 / 4, "{moved}");
    let mut drained = three;
    drained.services[0].backends[1].weight = 0;
    drained.services[0].backends[2].weight = 3;
    assert_eq!(counts(&drained).1, [64, 0, 192]);
    drained.services[0].backends.iter_mut().for_each(|backend| backend.weight = 0);
    assert!(counts(&drained).0.is_empty());
}

#[test]
fn rules_are_the_same_after_a_restart_and_others_after_a_change() {
    for mode in ["reactive", "hash"] {
        let (one, same, other) =
            (Rules::of(&config(mode, 2)), Rules::of(&config(mode, 2)), Rules::of(&config(mode, 3)));
        let cookies = |rules: &Rules| rules.flows.iter().map(|flow| flow.cookie).collect::<Vec<_>>();
        assert_eq!(cookies(&one), cookies(&same));
        assert_eq!(one.groups, same.groups);
        assert_ne!(cookies(&one), cookies(&other));
        assert!(
            one.flows.iter().all(|flow| flow.cookie & OURS == one.owner && one.connection_of(flow.cookie).is_none())
        );
        assert_eq!(one.groups.len(), usize::from(mode == "hash"));
        assert!(one.groups.keys().all(|&id| one.has_group(id) && id < 0xffff_ff00));
    }
}

#[test]
fn a_connections_cookie_names_its_backend() {
    let rules = Rules::of(&config("reactive", 2));
    let client = Client { ip: Ipv4Addr::new(10, 0, 0, 9).into(), port: 1234 };
    let [answers, asks] = rules.flows_of(0, 1, client).unwrap();
    assert_eq!(rules.connection_of(asks.cookie), Some((Some((0, 1)), false)));
    assert_eq!(rules.connection_of(answers.cookie), Some((Some((0, 1)), true)));
    assert_eq!(asks.matches.source(), Some(client.ip));
    assert_eq!(answers.matches.get(Kind::TCP_DST), Some(1234));
    assert_eq!((asks.flags, answers.flags), (flag::SEND_REMOVED, 0));
    let [.., last] = &there(&rules.fronts[0], &rules.targets[0][1])[..] else { panic!() };
    assert_eq!(*last, normal());
    assert!(rules.flows_of(0, 2, client).is_none() && rules.flows_of(1, 0, client).is_none());
    // Another instance's flows are not ours.
    let other = Rules::of(&OpenFlow { name: "u".to_owned(), ..config("reactive", 2) });
    assert_eq!(other.connection_of(asks.cookie), None);
}

#[test]
fn what_has_one_hash_is_not_taken_for_one() {
    let config = config("reactive", 2);
    let mut rules = Rules::of(&config);
    let count = rules.flows.len();
    // The same flow is there once, another with its cookie is there beside it.
    let old = rules.flows[0].clone();
    assert_eq!(rules.put(old.clone()), old.cookie);
    assert_eq!(rules.flows.len(), count);
    let other = FlowMod { priority: 9, ..old.clone() };
    let cookie = rules.put(other.clone());
    assert_eq!((rules.flows.len(), cookie & OURS), (count + 1, rules.owner));
    assert!(cookie != old.cookie && cookie & CONNECTION == 0);
    assert_eq!(rules.put(other), cookie);
    assert_eq!(rules.flows.len(), count + 1);
    // The last number is followed by the first.
    let last = FlowMod { cookie: rules.owner | (CONNECTION - 1), ..old };
    rules.put(last.clone());
    assert_eq!(rules.put(FlowMod { priority: 9, ..last }), rules.owner);
    // Names of connections: each leads to its own front and backend.
    rules.add_front(rules.fronts[0], &config.services[0]);
    let client = Client { ip: Ipv4Addr::new(10, 0, 0, 9).into(), port: 1234 };
    for (front, backend) in [(0, 0), (0, 1), (1, 0), (1, 1)] {
        let [_, asks] = rules.flows_of(front, backend, client).unwrap();
        assert_eq!(rules.connection_of(asks.cookie), Some((Some((front, backend)), false)));
    }
}
