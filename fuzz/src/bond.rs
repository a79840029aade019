//! What comes over the members of a bond, and what its own endpoint sends: hellos, numbers, frames
//! of any bytes, members that come and go. No panic, no frame lost to the pool, nothing that waits
//! for order longer than a replay takes.

use datapath::bond::hello::{Challenge, Hello, HelloKey};
use datapath::bond::number::{Encoding, MODULUS, Number};
use datapath::bond::{BondSettings, MemberState, Mode};
use datapath::frame::{Pool, PoolLimits};
use datapath::guard::Identity;
use datapath::program::{
    Attachment, Endpoint, Member, MemberId, PortFeatures, PortId, Program, Tenant, TenantId, Uplink,
};
use datapath::switch::Switch;
use datapath::units::{Both, Instant, Rate};
use datapath::wire::Mac;
use datapath::wire::build::eth;

/// Bytes of a step before what it carries.
pub const STEP: usize = 8;
/// Steps of one case at most.
const MOST: usize = 512;
const MEMBERS: u32 = 3;
const GUEST: PortId = PortId(0);
const STATES: [MemberState; 4] =
    [MemberState::Down, MemberState::Standby, MemberState::Collecting, MemberState::Distributing];
const SECRET: HelloKey = HelloKey(*b"both ends know's");
/// The longest that anything waits for order: a replay, and `hold`, in nanoseconds.
const LONGEST_NS: u64 = 20_000_000;

/// What the bond has said of itself: its epoch, and with a secret what it asks on each member.
#[derive(Default)]
struct Said {
    epoch: u64,
    challenges: [u64; MEMBERS as usize],
}

/// What the case is of.
#[derive(Clone, Copy)]
struct Case {
    encoding: Encoding,
    key: Option<HelloKey>,
}

/// `data` begins with the mode, whether members have bridges between them, and whether there is a
/// secret, a bit each, and is a step of [`STEP`] bytes after the other: what it is and the
/// member, what it says in five bytes, the time since the last, and how many bytes follow that are
/// it.
pub fn run(data: &[u8]) {
    let Some((&mode, mut rest)) = data.split_first() else { return };
    let mut pool = Pool::new(PoolLimits { small: 512, medium: 4, large: 4 });
    let encoding = if mode & 2 == 0 { Encoding::Tag } else { Encoding::Shim };
    let case = Case { encoding, key: (mode & 4 != 0).then_some(SECRET) };
    let mode = if mode & 1 == 0 { Mode::BalanceRr } else { Mode::Broadcast };
    let Ok(mut switch) = Switch::new(&program(mode, case), 7) else { unreachable!("the program is sound") };
    let mut now = Instant(1_000_000_000);
    switch.set_bond_key(&mut pool, now, case.key);
    for member in 0..MEMBERS {
        switch.set_member_state(&mut pool, now, MemberId(member as u8), MemberState::Distributing);
    }
    let mut said = Said::default();
    for _ in 0..MOST {
        let Some((step, tail)) = rest.split_first_chunk::<STEP>() else { break };
        let len = usize::from(step[7]).min(tail.len());
        let (bytes, tail) = tail.split_at(len);
        rest = tail;
        now = now.plus_ns(u64::from(step[6]) * 50_000);
        one(&mut switch, &mut pool, now, step, bytes, (&said, case));
        drain(&mut switch, &mut pool, now, &mut said, case);
        assert_eq!(pool.in_use(), switch.frames(), "a frame was lost to the pool");
    }
    let end = now.plus_ns(LONGEST_NS);
    while let Some(due) = switch.poll_timeout().filter(|&due| due <= end) {
        now = now.max(due);
        drain(&mut switch, &mut pool, now, &mut said, case);
    }
    let waiting = switch.bond_peer().map_or(0, |peer| peer.order.waiting);
    assert_eq!(waiting, 0, "frames wait for order longer than they may");
    switch.clear(&mut pool);
    assert_eq!(pool.in_use(), 0);
}

fn program(mode: Mode, Case { encoding, key }: Case) -> Program {
    let rate = Both { egress: Rate(Rate::GBIT), ingress: Rate(Rate::GBIT) };
    let members = (0..MEMBERS).map(|n| Member { port: PortId(n + 1), rate }).collect();
    let bond = Some(BondSettings { mode, order: true, encoding, is_keyed: key.is_some(), ..BondSettings::default() });
    let mut ports = vec![PortFeatures { max_frame: 1522, ..PortFeatures::default() }; MEMBERS as usize + 1];
    ports[0] = PortFeatures::default();
    let identity = Identity { macs: vec![Mac([2, 0, 0, 0, 0, 1])], ..Identity::default() };
    Program {
        uplink: Some(Uplink { members, bond, ..Uplink::new(PortId(1), rate) }),
        tenants: vec![Tenant { attachment: Attachment::Vlan(10), ..Tenant::default() }].into(),
        endpoints: vec![Endpoint { identity, ..Endpoint::new(TenantId(0), GUEST) }].into(),
        ports: ports.into(),
        ..Program::default()
    }
}

fn one(
    switch: &mut Switch,
    pool: &mut Pool,
    now: Instant,
    step: &[u8; STEP],
    bytes: &[u8],
    (said, Case { encoding, key }): (&Said, Case),
) {
    let member = u32::from(step[0] >> 4) % MEMBERS;
    let epoch = said.epoch;
    let port = PortId(member + 1);
    let word = |at: usize| u16::from_be_bytes([step[at], step[at + 1]]);
    let frame = match step[0] % 6 {
        // The bond at the other end, or another one, or this one's own.
        0 => {
            let hello = Hello {
                epoch: if step[1] & 1 == 0 { u64::from(step[1] >> 6) } else { epoch },
                heard: if step[1] & 2 == 0 { epoch } else { 5 },
                count: u32::from(step[2]),
                member: step[1] >> 3 & 3,
                receives: u16::from(step[2]),
                is_numbered: step[1] & 4 != 0,
                has_pieces: step[2] & 1 != 0,
                asks: step[2] & 4 != 0,
                below: word(3) % MODULUS,
                next: Some(word(4) % MODULUS),
                sent: u32::from_be_bytes([step[5], step[3], step[2], step[4]]),
                max_frame: 1522,
                encoding,
            };
            // It answers what was asked here, or does not know it.
            let answer = if step[1] & 32 == 0 { said.challenges[member as usize] } else { 0 };
            let challenge = Challenge { own: u64::from(step[5]), answer };
            pool.alloc_from(hello.frame(key.as_ref().map(|key| (key, challenge))).bytes())
        }
        1 => {
            let number = Number { value: word(1) % MODULUS, is_shared: step[3] & 1 != 0 };
            let payload = vec![7; usize::from(step[4])];
            let frame = eth(Mac([2, 0, 0, 0, 0, 9]), Mac([2, 0, 0, 0, 0, 1])).vlan(10).payload(payload);
            let mut all = frame.bytes();
            let [high, low] = encoding.ethertype().to_be_bytes();
            let tag = [high, low, (number.tci() >> 8) as u8, number.tci() as u8];
            all.splice(12..12, tag);
            if let Some(frame) = pool.alloc_from(&all) {
                let told = switch.explain(pool, now, port, &frame);
                assert_eq!(switch.rx(pool, now, port, frame), told.verdict, "{told}");
            }
            return;
        }
        2 => pool.alloc_from(bytes),
        3 => {
            let state = STATES[usize::from(step[1]) % STATES.len()];
            return switch.set_member_state(pool, now, MemberId(member as u8), state);
        }
        4 => {
            let frame = eth(Mac([2, 0, 0, 0, 0, 1]), Mac([2, 0, 0, 0, 0, 9])).payload(bytes.to_vec()).bytes();
            if let Some(frame) = pool.alloc_from(&frame) {
                switch.rx(pool, now, GUEST, frame);
            }
            return;
        }
        // What a guest sends as if it were a bond.
        _ => {
            let hello = Hello { epoch: 9, heard: epoch, encoding, ..Hello::default() };
            if let Some(frame) = pool.alloc_from(&hello.bytes()) {
                switch.rx(pool, now, GUEST, frame);
            }
            return;
        }
    };
    if let Some(frame) = frame {
        switch.rx(pool, now, port, frame);
    }
}

/// Sends what is due; takes down what the bond says of itself.
fn drain(switch: &mut Switch, pool: &mut Pool, now: Instant, said: &mut Said, case: Case) {
    while let Some((port, frame)) = switch.tx(pool, now) {
        if let Some((hello, challenge)) = Hello::read(pool.bytes(&frame), case.key.as_ref()) {
            said.epoch = hello.epoch;
            if let Some(asked) = port.0.checked_sub(1).and_then(|n| said.challenges.get_mut(n as usize)) {
                *asked = challenge.own;
            }
        }
        pool.free(frame);
    }
}
