//! Edits: what changes at the worker while it runs. They come as one list in one order and are done
//! one after the other, a bounded time at each of their turns, while frames go on.
//!
//! Who makes the list has opened every device and made every switch in it before, and gets back
//! what is no longer needed, so that the worker opens, closes, makes and frees nothing large.

use super::agents::Station;
use super::bonds::BondPost;
use super::snapshot::Count;
use super::{AnyPort, Backing, Claim, Device, LinkSlot, Payer, Post, SwitchSlot, Worker, ends_of};
use datapath::frame::PoolLimits;
use datapath::link::{Link, LinkConfig, Side};
use datapath::program::{Change, PortId, TenantId};
use datapath::switch::Switch;
use std::sync::mpsc::SyncSender;

/// How long edits may take at a turn, in nanoseconds: a tenth of what the loop may be late.
const ROUND_NS: u64 = 50_000;

/// One edit.
pub enum Edit {
    /// Whether never to sleep.
    Spin(bool),
    /// Other bounds of the frame memory.
    Memory(PoolLimits),
    /// A switch is put in place of another, with nothing behind its ports: an empty one where a
    /// switch is taken away.
    Switch(usize, Box<Switch>),
    /// Connections to a switch's services may be open that it does not know: it is in place of one
    /// that had them.
    Recover(usize),
    /// A link is put in place between two ports, or taken away with what is on it.
    LinkSlot(usize, Option<Box<LinkSlot>>),
    /// A link becomes another.
    Link(usize, LinkConfig),
    /// A link's ends are at other ports now.
    Ends(usize, [(usize, PortId); 2]),
    /// What is behind a port.
    Backing(usize, PortId, Option<Backing>),
    /// A device is put in place, or taken away.
    Device(usize, Option<Box<Device>>),
    /// A device is another port's now.
    Move(usize, usize, PortId),
    /// What parts of the worker's time ports have.
    Claims(Vec<(Backing, Claim)>),
    /// A switch changes.
    Change(usize, Change),
    /// The policy of a switch's bond: put in place, changed, or taken away.
    Bond(usize, Option<Box<BondPost>>),
    /// A switch's congestion agent is put in place, knows other things now, or is taken away.
    Agent(usize, Option<Box<Post>>),
}

/// What an edit left over, to be closed or freed by who asked.
pub enum Rest {
    /// An edit with what it does not need any more.
    Edit(#[expect(dead_code, reason = "only to be dropped")] Box<Edit>),
    /// Frame memory beyond its new bounds.
    Buffers(#[expect(dead_code, reason = "only to be dropped")] Vec<Box<[u8]>>),
    /// An agent.
    Agent(#[expect(dead_code, reason = "only to be dropped")] Box<Station>),
    /// A device's port.
    Port(#[expect(dead_code, reason = "only to be dropped")] AnyPort),
}

/// Edits being done.
pub struct Edits {
    /// What is left, the next one last.
    left: Vec<Edit>,
    /// Whether some may be done already.
    pub(super) is_begun: bool,
    rest: Vec<Rest>,
    failed: Option<String>,
    reply: SyncSender<Edited>,
}

/// Edits that are done.
pub struct Edited {
    /// What is no longer needed.
    pub rest: Vec<Rest>,
    /// The first thing that could not be done: a fault of who made the list. Everything else was
    /// done.
    pub failed: Option<String>,
}

impl Edits {
    /// A list in its order; the answer goes to `reply`, which has room for one.
    #[must_use]
    pub fn new(mut list: Vec<Edit>, reply: SyncSender<Edited>) -> Edits {
        list.reverse();
        let rest = Vec::with_capacity(list.len());
        Edits { left: list, is_begun: false, rest, failed: None, reply }
    }
}

impl Worker {
    /// Whether edits are to be done.
    pub(super) fn has_edits(&self) -> bool {
        !self.edits.is_empty()
    }

    /// Does edits for a while.
    pub(super) fn edit(&mut self) {
        let Some(mut edits) = self.edits.pop_front() else { return };
        let start = self.outside.now;
        if !std::mem::replace(&mut edits.is_begun, true) {
            self.counts.iter_mut().for_each(Count::begin_again);
        }
        while let Some(edit) = edits.left.pop() {
            match self.edit_one(edit) {
                Ok(rest) => edits.rest.extend(rest),
                Err(why) => drop(edits.failed.get_or_insert(why)),
            }
            if self.outside.look().since(start) > ROUND_NS {
                break;
            }
        }
        if edits.left.is_empty() {
            // The empty list's memory goes back as well.
            let _ = edits.reply.try_send(Edited { rest: edits.rest, failed: edits.failed });
        } else {
            self.edits.push_front(edits);
        }
    }

    /// Does a list before the worker runs.
    ///
    /// # Errors
    /// The first edit that could not be done.
    pub fn begin(&mut self, list: Vec<Edit>) -> Result<(), String> {
        list.into_iter().try_for_each(|edit| self.edit_one(edit).map(drop))
    }

    fn edit_one(&mut self, edit: Edit) -> Result<Option<Rest>, String> {
        let now = self.outside.now;
        match edit {
            Edit::Spin(spin) => self.spin = spin,
            Edit::Memory(limits) => return Ok(Some(Rest::Buffers(self.pool.set_limits(limits)))),
            Edit::Switch(index, switch) => return Ok(self.put_switch(index, switch)),
            Edit::Recover(index) => self.switch_slots[index].switch.recover_services(now),
            Edit::LinkSlot(index, link_slot) => return Ok(self.put_cable(index, link_slot)),
            Edit::Link(index, config) => {
                if let Some(Some(link_slot)) = self.outside.link_slots.get_mut(index) {
                    link_slot.link.set_config(&mut self.pool, now, config);
                }
            }
            Edit::Ends(index, ends) => {
                if let Some(Some(link_slot)) = self.outside.link_slots.get_mut(index) {
                    link_slot.ends = ends;
                }
            }
            Edit::Backing(index, port, way) => {
                // Frames may go there before the rest of the list is done: in a later round.
                match way {
                    Some(Backing::Device(device)) => self.room_for(device),
                    Some(Backing::Link(link_slot, _)) => self.room_for_cable(link_slot),
                    None => {}
                }
                let ways = &mut self.switch_slots[index].ways;
                if ways.len() <= port.0 as usize {
                    ways.resize(port.0 as usize + 1, None);
                }
                ways[port.0 as usize] = way;
            }
            Edit::Device(index, Some(device)) => return self.put_device(index, device),
            Edit::Device(index, None) => return Ok(self.take_device(index).map(Rest::Port)),
            Edit::Move(index, switch, port) => {
                let device = &mut self.outside.devices[index];
                (device.switch, device.id) = (switch, port);
                // There may be work at that port.
                self.seats.wake(Backing::Device(index));
            }
            Edit::Claims(claims) => claims.into_iter().for_each(|(way, claim)| self.claim(way, claim)),
            Edit::Bond(index, post) => self.bond(index, post),
            Edit::Agent(index, post) => return Ok(self.appoint(index, post)),
            Edit::Change(index, change) => {
                if let Change::Tenant(tenant, None) = change {
                    self.look.forget(index, Some(tenant));
                }
                let switch_slot = &mut self.switch_slots[index];
                switch_slot.touched = true;
                switch_slot
                    .switch
                    .change(&mut self.pool, now, change)
                    .map_err(|error| format!("switch {index}: {error}"))?;
            }
        }
        Ok(None)
    }

    fn put_switch(&mut self, index: usize, mut switch: Box<Switch>) -> Option<Rest> {
        let Some(switch_slot) = self.switch_slots.get_mut(index) else {
            // Numbers are given without gaps.
            self.switch_slots.push(SwitchSlot::new(*switch, Vec::new()));
            return None;
        };
        self.look.forget(index, None);
        std::mem::swap(&mut switch_slot.switch, &mut *switch);
        switch_slot.touched = true;
        switch_slot.due = None;
        switch_slot.ways.clear();
        // It is of links that were another's. The agent is taken away by an edit of its own.
        switch_slot.bond = None;
        switch.clear(&mut self.pool);
        Some(Rest::Edit(Box::new(Edit::Switch(index, switch))))
    }

    fn put_cable(&mut self, index: usize, mut link_slot: Option<Box<LinkSlot>>) -> Option<Rest> {
        self.room_for_cable(index);
        std::mem::swap(&mut self.outside.link_slots[index], &mut link_slot);
        if let Some(link_slot) = &mut link_slot {
            link_slot.link.clear(&mut self.pool);
        }
        for (way, side) in ends_of(index).into_iter().zip(Side::ALL) {
            match &self.outside.link_slots[index] {
                Some(link_slot) => self.seats.claim_any(way, link_slot.ends[side as usize].0),
                None => self.seats.leave(way),
            }
        }
        link_slot.map(|link_slot| Rest::Edit(Box::new(Edit::LinkSlot(index, Some(link_slot)))))
    }

    /// Gives a port its part of the worker's time, at its own turns and of what arrives by the
    /// uplink.
    fn claim(&mut self, way: Backing, claim: Claim) {
        self.seats.claim(way, claim);
        let port = match way {
            Backing::Device(index) => self.outside.devices.get(index).map(|device| device.id),
            Backing::Link(index, side) => {
                let link_slot = self.outside.link_slots.get(index).and_then(Option::as_ref);
                link_slot.map(|link_slot| link_slot.ends[side as usize].1)
            }
        };
        let Claim { switch, payer, tenant_weight, weight } = claim;
        if let (Payer::Tenant(tenant), Some(port)) = (payer, port)
            && let Some(switch_slot) = self.switch_slots.get_mut(switch)
        {
            switch_slot.switch.set_intake_weights((TenantId(tenant), tenant_weight), (port, weight));
        }
    }

    /// Whoever has this number's part of the time keeps it: parts are given before devices are
    /// opened, and stay with a number whose device is made anew.
    fn put_device(&mut self, index: usize, mut device: Box<Device>) -> Result<Option<Rest>, String> {
        self.room_for(index);
        let before = self.clear_device(index);
        self.seats.claim_any(Backing::Device(index), device.switch);
        // It may have work, though it is yet to come.
        self.seats.wake(Backing::Device(index));
        let Some(port) = &device.port else {
            self.outside.devices[index] = *device;
            return Ok(None);
        };
        match port.fd() {
            Some(fd) => self.wake.watch(index, fd).map_err(|error| {
                format!("a device cannot be watched (epoll): {error}; raise fs.epoll.max_user_watches")
            })?,
            None => self.polled.push(index),
        }
        std::mem::swap(&mut self.outside.devices[index], &mut device);
        self.open_member(index, true);
        Ok(before.map(Rest::Port))
    }

    /// Makes places for devices up to `index`, with nothing there.
    fn room_for(&mut self, index: usize) {
        while self.outside.devices.len() <= index {
            self.outside.devices.push(Device::none());
        }
    }

    /// Makes places for links up to `index`, with nothing there.
    fn room_for_cable(&mut self, index: usize) {
        while self.outside.link_slots.len() <= index {
            self.outside.link_slots.push(None);
        }
    }

    fn take_device(&mut self, index: usize) -> Option<AnyPort> {
        self.seats.leave(Backing::Device(index));
        self.clear_device(index)
    }

    fn clear_device(&mut self, index: usize) -> Option<AnyPort> {
        self.paused.retain(|&paused| paused != index);
        self.polled.retain(|&polled| polled != index);
        self.unwatch(index);
        let device = self.outside.devices.get_mut(index)?;
        device.thin(&[]);
        std::mem::replace(device, Device::none()).port
    }
}

impl LinkSlot {
    /// A link with nothing on it.
    #[must_use]
    pub fn new(config: LinkConfig, ends: [(usize, PortId); 2]) -> LinkSlot {
        LinkSlot { link: Link::new(config), ends, prepaid_ns: [0; 2] }
    }
}
