//! How TAP devices come, stay, are found again and go.

use crate::testbed::{Bed, Space, options, soon, turn};
use datapath::frame::{Pool, PoolLimits};
use datapath::wire::Mac;
use ports::netns::{Identity, Netns};
use ports::tap::{OpenError, Tap, TapOptions, reconfigure, remove_tagged};
use ports::{Inherited, Port, PortError, Refused, Survey};

fn send(tap: &mut dyn Port) -> Result<(), Refused> {
    let mut pool = Pool::new(PoolLimits::default());
    let frame = pool.alloc_from(&[0xff; 60]).unwrap();
    tap.tx(&mut pool, frame)
}

fn persistent(name: &str, space: &Space, addresses: &[&str]) -> TapOptions {
    TapOptions { persistent: true, ..options(name, space, addresses) }
}

#[test]
fn a_device_is_configured_as_asked_and_goes_with_its_descriptor() {
    let Some(_turn) = turn("a_device_is_configured_as_asked_and_goes_with_its_descriptor") else { return };
    let space = Space::new();
    let mut wanted = options("tap0", &space, &["10.9.0.1/24", "fd09::1/64"]);
    wanted.mac = Some(Mac([2, 0, 0, 0, 9, 7]));
    wanted.mtu = Some(9000);
    wanted.txqueuelen = Some(77);
    let own = Identity::own().unwrap();
    let tap = Tap::open(&wanted).unwrap();
    assert_eq!(Identity::own().unwrap(), own, "the caller stays where it was");
    let shown = space.ip("-d link show dev tap0");
    for part in ["02:00:00:00:09:07", "mtu 9000", "qlen 77", ",UP", &format!("alias levada:{}:tap0", space.instance())]
    {
        assert!(shown.contains(part), "{part} is not in {shown}");
    }
    let addresses = space.ip("addr show dev tap0");
    for part in ["10.9.0.1/24", "fd09::1/64", "fe80::"] {
        assert!(addresses.contains(part), "{part} is not in {addresses}");
    }
    assert!(!addresses.contains("fd09::1/64 scope global tentative"), "usable at once: {addresses}");
    drop(tap);
    assert!(!space.has("tap0"));
    wanted.without_ipv6 = true;
    wanted.addresses.pop();
    let tap = Tap::open(&wanted).unwrap();
    assert!(!space.ip("addr show dev tap0").contains("inet6"));
    drop(tap);
}

#[test]
fn ipv6_that_was_taken_is_given_back_and_nobody_elses_choice_is_changed() {
    let Some(_turn) = turn("ipv6_that_was_taken_is_given_back_and_nobody_elses_choice_is_changed") else { return };
    let space = Space::new();
    let with = persistent("tap0", &space, &[]);
    let without = TapOptions { without_ipv6: true, ..with.clone() };
    let has = || space.ip("addr show dev tap0").contains("inet6");
    for (wanted, expected) in [(&without, false), (&without, false), (&with, true), (&without, false)] {
        drop(Tap::open(wanted).unwrap());
        assert_eq!(has(), expected);
    }
    assert!(space.ip("link show dev tap0").contains("(without IPv6)"));
    drop(Tap::open(&with).unwrap());
    assert!(has() && !space.ip("link show dev tap0").contains("(without IPv6)"));
    let disable = || std::fs::write("/proc/sys/net/ipv6/conf/tap0/disable_ipv6", "1");
    space.0.run(disable).unwrap().unwrap();
    drop(Tap::open(&with).unwrap());
    assert!(!has(), "it was not Levada that took it");
    drop(Tap::open(&TapOptions { persistent: false, ..with }).unwrap());
}

#[test]
fn a_device_deleted_under_the_loop_is_gone_and_can_be_made_anew() {
    let Some(_turn) = turn("a_device_deleted_under_the_loop_is_gone_and_can_be_made_anew") else { return };
    let Bed { left, right, forwarder } = Bed::new(PoolLimits::default());
    right.ip("link del dev right0");
    let mut report = forwarder.wait();
    let (which, error) = report.ended.take().unwrap();
    assert!(matches!(error, PortError::Gone(_)) && which == 1, "{which} {error}");
    assert!(error.to_string().contains("right0"), "{error}");
    assert_eq!(report.frames_left_in_pool, 0);
    let [mut a, mut b] = report.ports;
    assert_eq!(send(&mut *b), Err(Refused::Gone));
    assert!(matches!(b.drops_before_us(), Err(PortError::Gone(_))));
    assert_eq!(send(&mut *a), Ok(()), "the other device is undisturbed");
    assert!(left.has("left0"));
    let mut again = Tap::open(&options("right0", &right, &[])).unwrap();
    assert_eq!(send(&mut again), Ok(()));
}

#[test]
fn a_namespace_deleted_under_the_loop_ends_its_device_alone() {
    let Some(_turn) = turn("a_namespace_deleted_under_the_loop_ends_its_device_alone") else { return };
    let Bed { left: _left, right, forwarder } = Bed::new(PoolLimits::default());
    let wanted = options("right0", &right, &[]);
    right.0.delete().unwrap();
    let mut report = forwarder.wait();
    let (which, error) = report.ended.take().unwrap();
    assert!(matches!(error, PortError::Gone(_)) && which == 1, "{which} {error}");
    let [mut a, _b] = report.ports;
    assert_eq!(send(&mut *a), Ok(()), "the other device is undisturbed");
    let missing = Tap::open(&wanted).unwrap_err();
    assert!(matches!(missing, OpenError::Namespace { .. }), "{missing}");
    let name = right.0.path().file_name().unwrap().to_str().unwrap().to_owned();
    Netns::create(&name).unwrap();
    let mut again = Tap::open(&wanted).unwrap();
    assert_eq!(send(&mut again), Ok(()));
}

#[test]
fn a_persistent_device_is_taken_up_again_with_what_it_had() {
    let Some(_turn) = turn("a_persistent_device_is_taken_up_again_with_what_it_had") else { return };
    let space = Space::new();
    let wanted = persistent("tap0", &space, &["10.9.0.1/24"]);
    let first = Tap::open(&wanted).unwrap();
    let index = space.index("tap0");
    space.ip("addr add 10.9.7.7/32 dev tap0");
    let second = Tap::open(&wanted).unwrap_err();
    assert!(matches!(second, OpenError::InUse { .. }), "{second}");
    drop(first);
    assert!(space.has("tap0"));
    let mut again = Tap::open(&wanted).unwrap();
    assert_eq!(space.index("tap0"), index, "it is the same device");
    let addresses = space.ip("addr show dev tap0");
    assert!(addresses.contains("10.9.0.1/24") && addresses.contains("10.9.7.7/32"), "{addresses}");
    assert_eq!(send(&mut again), Ok(()));
    drop(again);
    drop(Tap::open(&TapOptions { persistent: false, ..wanted }).unwrap());
    assert!(!space.has("tap0"), "it is not persistent any more");
}

#[test]
fn a_persistent_device_is_found_in_another_namespace() {
    let Some(_turn) = turn("a_persistent_device_is_found_in_another_namespace") else { return };
    let (home, away) = (Space::new(), Space::new());
    let wanted = persistent("tap0", &home, &[]);
    drop(Tap::open(&wanted).unwrap());
    let away_name = away.0.to_string();
    home.ip(&format!("link set dev tap0 netns {away_name} name eth0"));
    let unplaced = TapOptions { netns: None, ..wanted.clone() };
    let mut tap = Tap::open(&unplaced).unwrap();
    assert_eq!(tap.name(), "eth0");
    assert!(away.has("eth0"), "without a place of its own it stays where its owner moved it");
    assert_eq!(send(&mut tap), Ok(()));
    drop(tap);
    let mut tap = Tap::open(&wanted).unwrap();
    assert!(home.has("tap0") && !away.has("eth0"), "with one it goes there");
    assert_eq!(send(&mut tap), Ok(()));
    assert!(tap.drops_before_us().is_ok());
}

#[test]
fn a_device_moved_away_while_open_goes_on_and_still_tells_its_drops() {
    let Some(_turn) = turn("a_device_moved_away_while_open_goes_on_and_still_tells_its_drops") else { return };
    let (home, away) = (Space::new(), Space::new());
    let mut wanted = options("tap0", &home, &[]);
    wanted.txqueuelen = Some(1);
    let mut tap = Tap::open(&wanted).unwrap();
    home.ip(&format!("link set dev tap0 netns {} name eth0", away.0));
    away.ip("link set dev eth0 up");
    assert_eq!(send(&mut tap), Ok(()));
    away.ip("addr add 10.9.0.1/24 dev eth0");
    away.ip("neigh replace 10.9.0.2 lladdr 02:00:00:00:09:02 dev eth0");
    let before = tap.drops_before_us().unwrap();
    let _ = away.command("ping -c 5 -i 0.01 -W 1 10.9.0.2");
    let after = tap.drops_before_us().unwrap();
    assert!(after >= before + 4, "{before} {after}");
}

/// What an earlier process would leave of a device.
fn left_by(tap: &Tap, options: &TapOptions) -> Inherited {
    Inherited { fd: tap.fd().unwrap().try_clone_to_owned().unwrap(), known_as: Some(options.known_as()) }
}

#[test]
fn what_another_process_left_is_the_device_wherever_that_is() {
    let Some(_turn) = turn("what_another_process_left_is_the_device_wherever_that_is") else { return };
    let (home, away) = (Space::new(), Space::new());
    for persistent in [false, true] {
        let wanted = TapOptions { persistent, ..options("tap0", &home, &["10.9.0.1/24"]) };
        let before = Tap::open(&wanted).unwrap();
        home.ip(&format!("link set dev tap0 netns {} name eth0", away.0));
        let index = away.index("eth0");
        // Another has its name and place by now.
        home.ip("tuntap add dev tap0 mode tap");
        let survey = Survey::of(vec![left_by(&before, &wanted)], Vec::new());
        drop(before);
        let mut tap = Tap::open_among(&wanted, &survey).unwrap();
        assert!(tap.is_adopted());
        assert_eq!(away.index("eth0"), index, "it is the same device");
        let seen = tap.whereabouts().unwrap().clone();
        assert_eq!((seen.name.as_str(), seen.is_moved, seen.is_renamed, seen.is_up), ("eth0", true, true, false));
        assert_eq!(send(&mut tap), Err(Refused::Down));
        // What is the device's own follows, and what belongs to its place does not.
        let other = TapOptions { mtu: Some(1400), txqueuelen: Some(77), ..wanted.clone() };
        let note = Tap::settle(&other, tap.fd().unwrap()).unwrap().expect("it is not where it should be");
        assert!(note.contains("as eth0") && note.contains(&home.0.to_string()), "{note}");
        let shown = away.ip("address show dev eth0");
        assert!(shown.contains("mtu 1400") && shown.contains("qlen 77") && !shown.contains(",UP"), "{shown}");
        assert!(!shown.contains("10.9.0.1"), "{shown}");
        // What somebody asks for is set there, too.
        let more =
            TapOptions { addresses: options("", &away, &["10.9.0.1/24", "10.9.0.7/32"]).addresses, ..other.clone() };
        reconfigure(&other, &more, tap.fd().unwrap()).unwrap();
        let shown = away.ip("address show dev eth0");
        assert!(shown.contains("10.9.0.7") && !shown.contains("10.9.0.1"), "{shown}");
        away.ip("link set dev eth0 up");
        assert_eq!(send(&mut tap), Ok(()));
        assert!(tap.drops_before_us().is_ok() && tap.whereabouts().unwrap().has_carrier);
        // The namespace that it should be in is deleted: what is elsewhere goes on.
        home.ip("link del dev tap0");
        drop(tap);
        if persistent {
            away.ip("link del dev eth0");
        }
    }
    let wanted = options("tap0", &home, &[]);
    let before = Tap::open(&wanted).unwrap();
    home.ip(&format!("link set dev tap0 netns {}", away.0));
    let survey = Survey::of(vec![left_by(&before, &wanted)], Vec::new());
    let mut tap = Tap::open_among(&wanted, &survey).unwrap();
    home.0.delete().unwrap();
    assert!(tap.drops_before_us().is_ok());
    assert!(tap.whereabouts().unwrap().is_moved);
}

#[test]
fn nobody_gets_the_device_that_another_is_to_have() {
    let Some(_turn) = turn("nobody_gets_the_device_that_another_is_to_have") else { return };
    let (home, away) = (Space::new(), Space::new());
    let one = options("tap0", &home, &[]);
    let two = TapOptions { tag: one.tag.clone(), ..options("tap0", &away, &[]) };
    let tap = Tap::open(&one).unwrap();
    home.ip(&format!("link set dev tap0 netns {}", away.0));
    // It has the name and the place of the other, of which nothing is left.
    let survey = Survey::of(vec![left_by(&tap, &one)], Vec::new());
    survey.expect(&[one.known_as(), two.known_as()].into());
    assert!(matches!(Tap::open_among(&two, &survey), Err(OpenError::InUse { .. })), "it is another's");
    assert!(Tap::open_among(&one, &survey).unwrap().is_adopted());
    // Where nobody asks for what it was, it is what it has become.
    let survey = Survey::of(vec![left_by(&tap, &one)], Vec::new());
    survey.expect(&[two.known_as()].into());
    assert!(Tap::open_among(&two, &survey).unwrap().is_adopted());
    // A descriptor of a device that is gone is none.
    let survey = Survey::of(vec![left_by(&tap, &one)], Vec::new());
    away.ip("link del dev tap0");
    let again = Tap::open_among(&one, &survey).unwrap();
    assert!(!again.is_adopted() && home.has("tap0"));
}

#[test]
fn the_end_of_a_namespace_that_our_descriptor_holds_is_seen() {
    let Some(_turn) = turn("the_end_of_a_namespace_that_our_descriptor_holds_is_seen") else { return };
    let space = Space::new();
    let wanted = persistent("tap0", &space, &[]);
    drop(Tap::open(&wanted).unwrap());
    let mut tap = Tap::open(&wanted).unwrap();
    assert!(tap.drops_before_us().is_ok());
    space.0.delete().unwrap();
    let error = tap.drops_before_us().unwrap_err();
    assert!(matches!(error, PortError::Gone(_)), "{error}");
    assert!(error.to_string().contains(&space.0.to_string()), "{error}");
}

#[test]
fn devices_of_others_are_refused_and_left() {
    let Some(_turn) = turn("devices_of_others_are_refused_and_left") else { return };
    let space = Space::new();
    space.ip("tuntap add dev plain0 mode tap");
    space.ip("link add veth0 type veth peer name veth1");
    space.ip(&format!("link set dev veth0 alias levada:{}:veth0", space.instance()));
    space.ip("tuntap add dev other0 mode tap");
    space.ip("link set dev other0 alias levada:another-instance:other0");
    for (name, said) in [
        ("plain0", "not Levada's"),
        ("veth0", "belongs to the instance"),
        ("other0", "\"another-instance\""),
        ("lo", "not Levada's"),
    ] {
        let index = space.index(name);
        let error = Tap::open(&persistent(name, &space, &["10.9.0.1/24"])).unwrap_err();
        assert!(matches!(error, OpenError::Foreign { .. }) && error.to_string().contains(said), "{name}: {error}");
        assert_eq!(space.index(name), index);
        assert!(!space.ip(&format!("addr show dev {name}")).contains("10.9.0.1"), "{name} was touched");
    }
    assert_eq!(remove_tagged(&space.instance(), std::slice::from_ref(&space.0)).unwrap(), []);
    for name in ["plain0", "veth0", "other0"] {
        assert!(space.has(name));
    }
    let leftover = space.ip("-o link").lines().filter(|line| line.contains("levada0")).count();
    assert_eq!(leftover, 0);
}

#[test]
fn clean_removes_all_devices_of_an_instance_wherever_they_are() {
    let Some(_turn) = turn("clean_removes_all_devices_of_an_instance_wherever_they_are") else { return };
    let (ours, named) = (Space::new(), Space::new());
    let mine = |name: &str, netns: Option<Netns>| {
        let mut wanted = persistent(name, &named, &[]);
        wanted.netns = netns;
        wanted.tag.instance = named.instance();
        wanted
    };
    let instance = named.instance();
    let removed = ours
        .0
        .run(|| {
            drop(Tap::open(&mine("own0", None)).unwrap());
            drop(Tap::open(&mine("named0", Some(named.0.clone()))).unwrap());
            remove_tagged(&instance, &[]).unwrap()
        })
        .unwrap();
    let mut names: Vec<_> = removed.iter().map(|removed| (removed.name.as_str(), removed.endpoint.as_str())).collect();
    names.sort_unstable();
    assert_eq!(names, [("named0", "named0"), ("own0", "own0")]);
    assert!(!ours.has("own0") && !named.has("named0"));
    assert_eq!(remove_tagged(&instance, &[]).unwrap(), []);
}

#[test]
fn what_could_not_be_configured_is_not_left_behind() {
    let Some(_turn) = turn("what_could_not_be_configured_is_not_left_behind") else { return };
    let space = Space::new();
    let mut wanted = persistent("tap0", &space, &[]);
    wanted.mtu = Some(70_000);
    let error = Tap::open(&wanted).unwrap_err();
    assert!(matches!(error, OpenError::Kernel { .. }) && error.to_string().contains("MTU"), "{error}");
    soon("the device is gone", || !space.has("tap0"));
}

#[test]
fn a_namespace_cannot_be_made_twice_and_is_gone_when_deleted() {
    let Some(_turn) = turn("a_namespace_cannot_be_made_twice_and_is_gone_when_deleted") else { return };
    let space = Space::new();
    let name = space.0.to_string();
    assert_eq!(Netns::create(&name).unwrap_err().kind(), std::io::ErrorKind::AlreadyExists);
    assert!(Netns::named().unwrap().contains(&space.0));
    assert_ne!(space.0.identity().unwrap(), Identity::own().unwrap());
    assert_eq!(space.0.run(Identity::own).unwrap().unwrap(), space.0.identity().unwrap());
    space.0.delete().unwrap();
    assert!(space.0.identity().is_err() && !Netns::named().unwrap().contains(&space.0));
}
