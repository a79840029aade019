//! A check that asks something else: what the old one found, or had under way, decides nothing.

use super::*;

const INTERVAL: u64 = 60;

/// Asks once a minute; one failure is enough.
fn set(rig: &mut Rig, ask: Ask) {
    let two = vec![backend(2, Some(1)), backend(3, Some(2))];
    let (interval_ns, timeout_ns) = (INTERVAL * SECOND, INTERVAL * SECOND);
    let check = Check { ask, interval_ns, timeout_ns, rise: 2, fall: 1 };
    rig.change_service(Service { check: Some(check), ..service(Policy::RoundRobin, two) });
}

fn http() -> Ask {
    Ask::Http(Http { path: "/health".to_owned(), ..Http::default() })
}

/// The first probe comes within a tenth of the interval.
fn answer_first(rig: &mut Rig, status: &str) {
    let until = after(rig, INTERVAL / 10 + 1);
    run(rig, until, |_, bytes| open(bytes, status));
}

#[test]
fn the_first_probe_of_another_check_decides_alone_and_soon() {
    let mut rig = checked(http());
    set(&mut rig, http());
    answer_first(&mut rig, "404");
    assert_eq!(down(&rig), [true; 2]);
    set(&mut rig, Ask::Port);
    assert_eq!(down(&rig), [true; 2], "until it has said something");
    answer_first(&mut rig, "");
    assert_eq!(down(&rig), [false; 2]);
    // With the same one, what was found stands.
    set(&mut rig, Ask::Port);
    let until = after(&rig, INTERVAL / 2);
    let asked = run(&mut rig, until, |_, bytes| open(bytes, ""));
    assert_eq!((asked.len(), down(&rig)), (0, vec![false; 2]));
}

#[test]
fn what_a_server_answers_to_the_check_before_is_not_judged_by_the_one_now() {
    let mut rig = checked(http());
    set(&mut rig, http());
    answer_first(&mut rig, "200");
    let mut asked = Vec::new();
    let until = after(&rig, INTERVAL + INTERVAL / 5);
    run(&mut rig, until, |to, bytes| {
        let layout = parse(bytes).unwrap();
        let is_request = usize::from(layout.payload_offset) < layout.end as usize;
        if is_request {
            asked.push((to, bytes.to_vec()));
        }
        open(bytes, "").filter(|_| !is_request)
    });
    assert_eq!(asked.len(), 2, "both are asked, and have not answered");
    set(&mut rig, Ask::Tls(Tls::default()));
    for (port, request) in asked {
        let answer = open(&request, "200").expect("a request").frame(&mut rig.pool).expect("a buffer");
        let _ = rig.switch.rx(&mut rig.pool, rig.now, PortId(port), answer);
    }
    let failed = |rig: &Rig| rig.switch.service_backends(FIRST).map(|(_, _, stats)| stats.failed_checks).sum::<u64>();
    assert_eq!((failed(&rig), down(&rig)), (0, vec![false; 2]));
    // Nor has it lasted too long, later on.
    set(&mut rig, http());
    let until = after(&rig, INTERVAL);
    run(&mut rig, until, |_, bytes| open(bytes, "200"));
    assert_eq!((failed(&rig), down(&rig)), (0, vec![false; 2]));
    rig.switch.clear(&mut rig.pool);
    assert_eq!(rig.pool.in_use(), 0);
}
