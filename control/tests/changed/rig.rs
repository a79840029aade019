//! A switch with its plan, and frames for it.

use crate::spec::{PORTS, declared, undeclared, v4};
use control::plan::Plan;
use datapath::frame::{Pool, PoolLimits};
use datapath::frame_trace::FrameTrace;
use datapath::program::{EndpointId, PortId, Program, TenantId};
use datapath::switch::Switch;
use datapath::units::Instant;
use datapath::verdict::{Reason, Verdict};
use datapath::wire::Mac;
use datapath::wire::build::{Build, arp_request, eth};
use proptest::prelude::*;
use std::net::{IpAddr, Ipv4Addr};

const MS: u64 = 1_000_000;
/// In [`Sent::from`]: by the uplink.
pub const UPLINK: u8 = PORTS;
/// Before the last change, and behind it: a part of addresses that nobody declares.
const BEFORE: u8 = 1;
pub const BEHIND: u8 = 2;

/// A frame, as far as it does not depend on who is where.
#[derive(Clone, Copy, Debug, Default)]
pub struct Sent {
    pub from: u8,
    /// Below five: what an endpoint may declare; everyone; outside; the services.
    pub to: u8,
    /// 2: from what `who` may declare; 3: from what was outside before; else the sender's own.
    pub source: u8,
    pub who: u8,
    pub kind: u8,
    pub tag: u8,
    pub pause: u8,
}

impl Sent {
    pub fn locator(self) -> String {
        if self.from < UPLINK { format!("tap://p{}", self.from) } else { "tap://up".to_owned() }
    }

    /// The frame; `n` tells flows apart.
    pub fn build(self, program: &Program, port: PortId, (day, loose): (u8, bool), n: u16) -> Build<'static> {
        let here = program.endpoints.values().find(|endpoint| endpoint.port == port);
        let own_mac = here.and_then(|endpoint| endpoint.identity.macs.first().copied());
        let own_ip = here.and_then(|endpoint| endpoint.identity.ipv4.first()).map(|&(ip, _)| ip);
        let (mac, ip) = match self.source {
            2 if loose || day == BEHIND => (declared(self.who), v4(0, self.who + 1)),
            3 if loose => (undeclared(BEFORE, UPLINK), v4(BEFORE, UPLINK)),
            _ => (own_mac.unwrap_or(undeclared(day, self.from)), own_ip.unwrap_or(v4(day, self.from))),
        };
        let service = |n: usize| {
            let service = program.services.values().nth(n)?;
            match service.addresses.first()?.ip {
                IpAddr::V4(ip) => Some((service.mac, ip)),
                IpAddr::V6(_) => None,
            }
        };
        let outside = (undeclared(day, UPLINK + 1), v4(day, UPLINK + 1));
        let (to_mac, to_ip) = match self.to {
            n @ 0..=4 => (declared(n), v4(0, n + 1)),
            5 => (Mac::BROADCAST, Ipv4Addr::BROADCAST),
            6 => outside,
            n => service(usize::from(n - 7)).unwrap_or(outside),
        };
        let flow = 5000 + n;
        let packet = eth(mac, to_mac).ipv4(ip, to_ip);
        let frame = match self.kind {
            0 => packet.udp(flow, 53).payload(vec![1; 20]),
            1 => packet.udp(flow, 53).payload(vec![2; 1000]),
            2 => packet.tcp(flow, 80, 7).flags(2),
            // Several segments leave one by one, and meet a discipline: not where times may differ.
            4 if day == BEFORE => packet.tcp(flow, 81, 7).payload(vec![3; 4000]).gso(1000),
            _ => arp_request(mac, ip, to_ip),
        };
        match self.tag {
            1 if self.from >= UPLINK => frame.vlan(10),
            2 if self.from >= UPLINK => frame.vlan(20),
            _ => frame,
        }
    }
}

pub struct Rig {
    pub switch: Switch,
    pool: Pool,
    pub plan: Plan,
    pub now: Instant,
}

/// What leaves, by the port's locator.
pub type Out = Vec<(String, Vec<u8>)>;

impl Rig {
    pub fn new(plan: Plan, now: Instant) -> Result<Rig, TestCaseError> {
        let mut switch = Switch::new(&plan.scaled_program(&plan.switches[0]), 1).expect("a sound program");
        switch.set_service_key(7);
        let pool = Pool::new(PoolLimits { small: 4000, medium: 200, large: 64 });
        let mut rig = Rig { switch, pool, plan, now };
        rig.rest(0)?;
        Ok(rig)
    }

    /// The program of another plan, step by step.
    pub fn follow(&mut self, plan: Plan, meanwhile: bool) -> Result<(), TestCaseError> {
        self.now = self.now.plus_ns(1);
        let program = plan.scaled_program(&plan.switches[0]);
        let changes = program.changes_from(self.switch.program());
        self.plan = plan;
        for change in changes.into_iter().flatten() {
            let what = format!("{change:?}");
            prop_assert_eq!(self.switch.change(&mut self.pool, self.now, change), Ok(()), "{}", what);
            if meanwhile {
                drop(self.due());
            }
        }
        prop_assert_eq!(self.switch.program(), &program);
        Ok(())
    }

    pub fn port(&self, locator: &str) -> Option<PortId> {
        let mut ports = self.plan.switches[0].ports.iter();
        ports.find(|(_, port)| port.locator.to_string() == locator).map(|(id, _)| PortId(id))
    }

    pub fn rx(&mut self, port: PortId, frame: &Build<'_>) -> (FrameTrace, Verdict) {
        let mut bytes = Vec::new();
        let offload = frame.write(&mut bytes);
        let frame = self.pool.alloc_from(&bytes).expect("a buffer");
        self.pool.meta_mut(&frame).offload = offload;
        let explained = self.switch.explain(&self.pool, self.now, port, &frame);
        (explained, self.switch.rx(&mut self.pool, self.now, port, frame))
    }

    fn due(&mut self) -> Out {
        let mut out = Vec::new();
        while let Some((port, frame)) = self.switch.tx(&mut self.pool, self.now) {
            let locator = self.plan.switches[0].ports.get(port.0).map(|port| port.locator.to_string());
            out.push((locator.unwrap_or_default(), self.pool.bytes(&frame).to_vec()));
            self.pool.free(frame);
        }
        out
    }

    /// Until nothing waits, or nothing more is due by `end`.
    pub fn run(&mut self, end: Option<Instant>) -> Out {
        let mut out = self.due();
        while self.switch.frames() > 0
            && let Some(at) = self.switch.poll_timeout().filter(|&at| end.is_none_or(|end| at <= end))
        {
            self.now = at.max(self.now.plus_ns(1));
            out.append(&mut self.due());
        }
        self.now = end.unwrap_or(self.now).max(self.now);
        out
    }

    /// Nothing waits, all has had its time, and memory is divided.
    pub fn rest(&mut self, ns: u64) -> Result<(), TestCaseError> {
        drop(self.run(None));
        prop_assert_eq!((self.switch.frames(), self.pool.in_use()), (0, 0), "what waits is sent");
        self.now = self.now.plus_ns(ns);
        (0..4).for_each(|_| drop(self.due()));
        Ok(())
    }

    pub fn send(&mut self, sent: Sent, loose: bool, n: u16) {
        let Some(port) = self.port(&sent.locator()) else { return };
        let frame = sent.build(self.switch.program(), port, (BEFORE, loose), n);
        let _ = self.rx(port, &frame);
        match sent.pause {
            0 => {}
            1 => drop(self.due()),
            2 => drop(self.run(Some(self.now.plus_ns(MS)))),
            _ => drop(self.run(Some(self.now.plus_ns(100 * MS)))),
        }
    }

    /// What was lost of each endpoint's frames, and of the uplink's, by reason.
    pub fn drops(&self) -> Vec<u64> {
        let endpoints = self.switch.program().endpoints.iter();
        let all = endpoints.map(|(id, _)| self.switch.endpoint_stats(EndpointId(id)).drops);
        let all: Vec<_> = all.chain([self.switch.uplink_drops().clone()]).collect();
        all.iter().flat_map(|drops| Reason::ALL.iter().map(move |&reason| drops.get(reason))).collect()
    }

    /// What each tenant, then each endpoint, has of the frame memory.
    pub fn shares(&self) -> Vec<u64> {
        let program = self.switch.program();
        let tenants = program.tenants.iter().map(|(id, _)| self.switch.tenant_own_memory(&self.pool, TenantId(id)));
        let endpoints = program.endpoints.iter().map(|(id, _)| self.switch.endpoint_memory(&self.pool, EndpointId(id)));
        tenants.chain(endpoints).map(|memory| memory.share).collect()
    }
}

pub fn sent() -> impl Strategy<Value = Sent> {
    (0u8..8, 0u8..9, 0u8..4, 0u8..5, 0u8..5, 0u8..3, 0u8..4)
        .prop_map(|(from, to, source, who, kind, tag, pause)| Sent { from, to, source, who, kind, tag, pause })
}
