//! What a bond costs a frame, without ports and switch.
//!
//! ```text
//! bond_cost none N       a frame is made and freed: what the others have besides
//! bond_cost plain N      round robin without numbers: chosen, and sent when its turn comes
//! bond_cost select N     the same with a number
//! bond_cost send N       the same, and given back to be kept till the other end has it
//! bond_cost number N     a number is written on a frame: what `receive` has besides
//! bond_cost receive N    a frame whose number is next: it is taken off, and the frame goes on
//! ```
//!
//! Two members of 1 Gbit/s, frames of 1000 bytes, at the rate of both. Hellos and marks are said
//! as they are due; of `select` and `send` the other end says each 512 frames that it has them.
//! Under `valgrind --tool=callgrind`, run it twice with different N: the difference is free of the
//! set-up.

use std::process::exit;

use datapath::bond::hello::Hello;
use datapath::bond::number::{Encoding, MODULUS, Number, put_on};
use datapath::bond::{Bond, BondSettings, MemberId, MemberState, Mode};
use datapath::frame::{Frame, Out, Owner, Pool, PoolLimits};
use datapath::program::{EndpointId, PortFeatures};
use datapath::units::{Instant, Rate};
use datapath::wire::build::eth;
use datapath::wire::{Layout, Mac, parse};

const RATES: [Rate; 2] = [Rate(Rate::GBIT); 2];
const PAYLOAD: usize = 986;
/// What a frame takes on both wires, with its tag.
const WIRE_BYTES: u32 = 1000 + 4 + 24;
const GAP_NS: u64 = WIRE_BYTES as u64 * 8 / 2 + 8;
const SENDER: EndpointId = EndpointId(0);
const AGREED_NS: u64 = 20_000_000;
/// Frames after which the other end says that it has them.
const ANSWERED: u64 = 512;

struct World {
    pool: Pool,
    ends: [Bond; 2],
    now: Instant,
    bytes: Vec<u8>,
    layout: Layout,
    /// What the other end said last, and over which member.
    answer: Option<(MemberId, Hello)>,
}

fn main() {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let count = arguments.get(1).and_then(|count| count.parse::<u64>().ok());
    let (Some(mode), Some(count)) = (arguments.first(), count) else { usage() };
    let mut world = World::new(mode != "plain");
    world.answer = world.answer.filter(|_| matches!(mode.as_str(), "select" | "send"));
    match mode.as_str() {
        "none" => world.each(count, |world, _, frame| world.pool.free(frame)),
        "plain" | "select" => world.each(count, |world, _, frame| {
            let passed = world.ends[0].send(&mut world.pool, world.now, frame).expect("there is room");
            passed.into_iter().for_each(|(_, frame)| world.pool.free(frame));
            while let Some((_, frame)) = world.ends[0].poll(&mut world.pool, world.now) {
                world.pool.free(frame);
            }
        }),
        "send" => world.each(count, |world, _, frame| {
            let World { pool, now, ends: [end, _], .. } = world;
            let mut left = end.send(pool, *now, frame).expect("there is room");
            while let Some((member, frame)) = left.take().or_else(|| end.poll(pool, *now)) {
                assert!(end.wants_back(pool, &frame));
                end.give_back(pool, *now, member, frame);
            }
        }),
        "number" | "receive" => world.each(count, |world, n, frame| {
            assert!(put_on(&mut world.pool, &frame, Number::new(n, false), Encoding::Tag), "there is headroom");
            if mode == "number" {
                return world.pool.free(frame);
            }
            let member = MemberId((n % 2) as u8);
            let number = world.ends[1].take_number(&mut world.pool, member, &frame).expect("the other end is known");
            let number = number.expect("it has one");
            let (pool, now) = (&mut world.pool, world.now);
            let next = world.ends[1].put_in_order(pool, now, member, number, frame).expect("it is new");
            world.pool.free(next.expect("it is the next"));
        }),
        _ => usage(),
    }
    println!("{count} operations");
}

fn usage() -> ! {
    eprintln!("usage: bond_cost none|plain|select|send|number|receive N");
    exit(2);
}

impl World {
    /// Two bonds that have agreed, where frames are to have numbers.
    fn new(has_numbers: bool) -> World {
        let mut pool = Pool::new(PoolLimits { small: 40_000, medium: 0, large: 0 });
        let now = Instant(1_000_000_000);
        let settings = BondSettings { mode: Mode::BalanceRr, order: has_numbers, ..BondSettings::default() };
        let ends = [1, 2].map(|seed| {
            let mut bond = Bond::new(settings, &RATES, seed);
            let account = pool.open_account(Owner::NOBODY);
            bond.set_keeper(&mut pool, SENDER, account);
            bond.set_members(&mut pool, now, settings, &RATES, &[None; RATES.len()]);
            for member in [0, 1].map(MemberId) {
                bond.set_features(member, PortFeatures { max_frame: 1522, ..PortFeatures::default() });
                bond.set_state(&mut pool, now, member, MemberState::Distributing);
            }
            bond
        });
        let bytes = eth(Mac([2, 0, 0, 0, 0, 1]), Mac([2, 0, 0, 0, 0, 2])).payload(vec![0; PAYLOAD]).bytes();
        let layout = parse(&bytes).expect("it is sound");
        let mut world = World { pool, ends, now, bytes, layout, answer: None };
        let end = now.plus_ns(AGREED_NS);
        while has_numbers && world.now < end {
            world.speak(true);
            world.now = world.now.plus_ns(GAP_NS);
        }
        assert!(!has_numbers || world.ends.iter().all(|bond| bond.plain() == Some(None)), "they agree");
        world
    }

    /// Does something with each of so many frames.
    fn each(&mut self, count: u64, mut what: impl FnMut(&mut World, u64, Frame)) {
        for n in 0..count {
            let frame = self.pool.alloc_from(&self.bytes).expect("there is a buffer");
            let meta = self.pool.meta_mut(&frame);
            (meta.layout, meta.wire_bytes) = (self.layout, WIRE_BYTES);
            meta.set_out(Out::From(SENDER));
            what(self, n, frame);
            self.now = self.now.plus_ns(GAP_NS);
            self.speak(false);
            if n % ANSWERED == ANSWERED - 1 {
                self.answer(n + 1);
            }
        }
    }

    /// The other end has that many frames.
    fn answer(&mut self, frames: u64) {
        let Some((member, hello)) = &mut self.answer else { return };
        hello.count += 1;
        hello.next = Some((frames % u64::from(MODULUS)) as u16);
        let frame = self.pool.alloc_from(&hello.bytes()).expect("there is a buffer");
        let _ = self.ends[0].hear(&mut self.pool, self.now, *member, &frame);
        self.pool.free(frame);
    }

    /// Says what is due; the other end hears it, or does not.
    fn speak(&mut self, is_heard: bool) {
        for side in 0..2 {
            if !self.ends[side].is_peer_due(self.now) {
                continue;
            }
            self.ends[side].advance(&mut self.pool, self.now);
            while let Some((member, hello)) = self.ends[side].poll_hello(&self.pool, self.now) {
                let frame = self.pool.alloc_from(hello.bytes()).expect("there is a buffer");
                if is_heard {
                    let _ = self.ends[1 - side].hear(&mut self.pool, self.now, member, &frame);
                    if side == 1 {
                        self.answer = Hello::read(hello.bytes(), None).map(|(said, _)| (member, said));
                    }
                }
                self.pool.free(frame);
            }
        }
    }
}
