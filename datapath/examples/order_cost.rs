//! What an enqueue and a dequeue cost an order, by the number of children.
//!
//! `order_cost KIND CHILDREN PAIRS [WEIGHTS]` with KIND `fair`, `wf2q`, `vtrr`, `vtrr-bytes` or
//! `none` (the loop alone, to subtract), and WEIGHTS `equal` (default) or `mixed` (1 to 1000). It
//! keeps as many frames queued as there are children, in queues chosen at random: a pair puts one
//! frame into a random queue, which may wake it, and serves the queue that is next, which may empty
//! it.
//!
//! Under `valgrind --tool=callgrind`, run it twice with different PAIRS: the difference is free of
//! the set-up.

use datapath::program::OrderKind;
use datapath::sched::order::{Order, Weight};
use std::time::Instant;

/// Longest frame on the wire, bytes: MTU 1500 with headers, preamble, FCS and gap.
const FRAME: u32 = 1538;

struct Level {
    order: Option<Order>,
    queued: Vec<u32>,
    dice: u64,
    /// Stands in for the order where there is none.
    turn: u32,
}

impl Level {
    fn random(&mut self) -> u32 {
        self.dice ^= self.dice << 13;
        self.dice ^= self.dice >> 7;
        self.dice ^= self.dice << 17;
        (((self.dice >> 32) * self.queued.len() as u64) >> 32) as u32
    }

    fn enqueue(&mut self) {
        let child = self.random();
        let queued = &mut self.queued[child as usize];
        *queued += 1;
        if *queued == 1
            && let Some(order) = &mut self.order
        {
            order.activate(child, FRAME, 0);
        }
    }

    fn dequeue(&mut self) {
        let child = match &mut self.order {
            Some(order) => order.peek(0).expect("as many frames are queued as there are children"),
            None => {
                self.turn = (self.turn + 1) % self.queued.len() as u32;
                self.turn
            }
        };
        let queued = &mut self.queued[child as usize];
        *queued = queued.saturating_sub(1);
        let next = (*queued > 0).then_some(FRAME);
        if let Some(order) = &mut self.order {
            order.charge(child, FRAME, next);
        }
    }
}

fn main() {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let arg = |at: usize| args.get(at).map(String::as_str);
    let kind = match arg(0) {
        Some("fair") => Some(OrderKind::Fair),
        Some("wf2q") => Some(OrderKind::Wf2q),
        Some("vtrr") => Some(OrderKind::Vtrr),
        Some("vtrr-bytes") => Some(OrderKind::VtrrBytes),
        Some("none") => None,
        _ => panic!("usage: order_cost fair|wf2q|vtrr|vtrr-bytes|none CHILDREN PAIRS [equal|mixed]"),
    };
    let number = |at: usize| arg(at).and_then(|text| text.parse::<u32>().ok()).expect("CHILDREN and PAIRS are numbers");
    let (children, pairs) = (number(1).max(1), number(2));
    let mixed = arg(3) == Some("mixed");

    let order = kind.map(|kind| Order::share(kind, FRAME));
    let mut level = Level { order, queued: vec![0; children as usize], dice: 0x2545_f491_4f6c_dd1d, turn: 0 };
    for child in 0..children {
        let weight = if mixed { 1 + child * 7919 % 1000 } else { 1 };
        if let Some(order) = &mut level.order {
            order.set_weight(child, Weight::from_weight(weight));
        }
    }
    for _ in 0..children {
        level.enqueue();
    }
    let start = Instant::now();
    for _ in 0..pairs {
        level.enqueue();
        level.dequeue();
    }
    let ns = start.elapsed().as_nanos() as f64 / f64::from(pairs.max(1));
    println!("{} {children} children: {ns:.1} ns a pair", args[0]);
}
