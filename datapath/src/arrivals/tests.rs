//! The table of sources: what is told of each, its bounds, and what is given up.

use super::*;

fn mac(n: u32) -> Mac {
    let [a, b, c, d] = n.to_be_bytes();
    Mac([2, 0, a, b, c, d])
}

const ME: EndpointId = EndpointId(4);

fn watched() -> Arrivals {
    let mut arrivals = Arrivals::new(7);
    arrivals.watch(true);
    arrivals
}

fn take(table: &mut Arrivals) -> (Vec<Arrival>, Vec<QueueSample>) {
    let (mut arrivals, mut queues) = (vec![], vec![]);
    table.take(&mut arrivals, &mut queues, |_| 0);
    (arrivals, queues)
}

#[test]
fn a_sample_is_what_came_since_the_last() {
    let mut table = watched();
    table.arrive(ME, mac(1), 100);
    table.arrive(ME, mac(2), 60);
    table.arrive(ME, mac(1), 11);
    table.lose(ME, mac(2), 60);
    let (arrivals, queues) = take(&mut table);
    let of = |n, wire_bytes, dropped_bytes| Arrival { to: ME, from: Some(mac(n)), wire_bytes, dropped_bytes };
    assert_eq!(arrivals, [of(1, 111, 0), of(2, 60, 60)]);
    let queue = QueueSample {
        endpoint: ME,
        arrived_bytes: 171,
        dropped_bytes: 60,
        last_dropped: Some(mac(2)),
        backlog_bytes: 0,
    };
    assert_eq!(queues, [queue]);
    assert_eq!(take(&mut table), (vec![], vec![]));
    table.lose(ME, mac(9), 5);
    assert_eq!(take(&mut table).0, [of(9, 0, 5)], "what was lost later than it came has its sender too");
}

#[test]
fn a_full_table_still_counts_for_the_endpoint() {
    let mut table = watched();
    for n in 0..2000 {
        table.arrive(ME, mac(n), 10);
    }
    table.lose(ME, mac(1999), 10);
    table.arrive(EndpointId(5), mac(1), 1);
    let (arrivals, queues) = take(&mut table);
    assert_eq!(arrivals.len(), MOST_OF_ENDPOINT as usize + 2, "one's flood takes no room from another's");
    let others = arrivals.iter().find(|arrival| arrival.from.is_none()).expect("others");
    assert_eq!((others.to, others.wire_bytes, others.dropped_bytes), (ME, 9760, 10));
    assert_eq!((queues[0].arrived_bytes, queues[0].last_dropped), (20_000, Some(mac(1999))));
    let mut table = watched();
    for endpoint in 0..100 {
        for n in 0..1000 {
            table.arrive(EndpointId(endpoint), mac(n), 1);
        }
    }
    let (arrivals, queues) = take(&mut table);
    assert_eq!(arrivals.iter().filter(|arrival| arrival.from.is_some()).count(), MOST as usize / 2, "all are one's");
    assert_eq!(arrivals.iter().map(|arrival| arrival.wire_bytes).sum::<u64>(), 100_000);
    assert_eq!(queues.len(), 100);
}

#[test]
fn a_tenant_that_hears_from_many_leaves_others_their_room_and_their_silent_sources() {
    let mut table = watched();
    (0..8).for_each(|endpoint| table.set_owner(EndpointId(endpoint), TenantId(1)));
    let other = EndpointId(8);
    table.set_owner(other, TenantId(2));
    for sample in 0..40 {
        // Others each time, so that the silent ones of before are in the way.
        for endpoint in 0..8 {
            (0..MOST / 8).for_each(|n| table.arrive(EndpointId(endpoint), mac(sample << 16 | n), 1));
        }
        let speaks = sample % 10 == 0;
        if speaks {
            table.arrive(other, mac(1), 1);
        }
        let heard = take(&mut table).0;
        let own = heard.iter().filter(|arrival| arrival.to == other).map(|arrival| arrival.from);
        assert_eq!(own.collect::<Vec<_>>(), if speaks { vec![Some(mac(1))] } else { vec![] }, "sample {sample}");
        assert!(table.sources.find(&Key::new(other, mac(1))).is_some(), "sample {sample}");
        let counts = table.tenants.iter().map(|tenant| tenant.sources).collect::<Vec<_>>();
        assert_eq!((counts[0], counts[2], counts[1] + 1), (0, 1, table.sources.len()));
    }
    (0..9).for_each(|endpoint| table.forget(EndpointId(endpoint)));
    assert!(table.sources.is_empty() && table.tenants.iter().all(|tenant| tenant.sources == 0));
}

#[test]
fn silent_sources_are_given_up_and_make_room() {
    let mut table = watched();
    for n in 0..MOST_OF_ENDPOINT {
        table.arrive(ME, mac(n), 10);
    }
    take(&mut table);
    table.arrive(ME, mac(7), 1);
    table.arrive(ME, mac(5000), 1);
    assert_eq!(take(&mut table).0.iter().filter(|arrival| arrival.from.is_none()).count(), 1, "no room yet");
    table.arrive(ME, mac(5000), 1);
    table.arrive(ME, mac(7), 1);
    let mut sources: Vec<Option<Mac>> = take(&mut table).0.iter().map(|arrival| arrival.from).collect();
    sources.sort_unstable();
    assert_eq!(sources, [Some(mac(7)), Some(mac(5000))]);
    assert_eq!(table.sources.len(), 2);
    table.forget(ME);
    assert!(table.sources.is_empty());
    assert_eq!(take(&mut table), (vec![], vec![]));
}

#[test]
fn who_sends_now_and_then_stays_in_the_table_and_who_is_silent_goes() {
    let mut table = watched();
    for sample in 0..1000 {
        table.arrive(ME, mac(1), 1);
        if sample % 50 == 0 {
            table.arrive(ME, mac(2), 1);
        }
        if sample < 10 {
            table.arrive(EndpointId(sample), mac(3 + sample), 1);
        }
        let expected = 1 + usize::from(sample % 50 == 0) + usize::from(sample < 10);
        assert_eq!(take(&mut table).0.len(), expected, "sample {sample}");
        let kept = |n| table.sources.find(&Key::new(ME, mac(n))).is_some();
        assert!(kept(1) && kept(2), "sample {sample}");
        assert!(
            table.sources.len() <= if u64::from(sample) < 10 + 2 * SILENT_SAMPLES { 12 } else { 2 },
            "sample {sample}"
        );
    }
}

#[test]
fn an_endpoint_that_goes_takes_what_was_counted_with_it() {
    let mut table = watched();
    for n in 0..4 {
        table.arrive(ME, mac(n), 10);
        table.arrive(EndpointId(5), mac(n), 1);
    }
    table.forget(ME);
    table.arrive(EndpointId(5), mac(3), 1);
    let (arrivals, queues) = take(&mut table);
    let mut bytes: Vec<u64> = arrivals.iter().map(|arrival| arrival.wire_bytes).collect();
    bytes.sort_unstable();
    assert_eq!((bytes, queues.len()), (vec![1, 1, 1, 2], 1));
    assert!(arrivals.iter().all(|arrival| arrival.to == EndpointId(5)));
}
