//! Windows below two segments: acknowledgements that wait.
//!
//! A guest is told two segments at least ([`super::window`]). Where the controller allows less, the
//! acknowledgement that lets the next two go waits, so that they go once in `srtt * two / window`
//! and not once in a round trip: the lever of PAC (ICNP 2014), for the problem of *Scaling TCP's
//! window for small round trip times* (Briscoe, De Schepper, 2015). With one segment a receiver
//! would delay its acknowledgement by 40 ms or more; for the second of two it does not (RFC 9293,
//! section 3.8.6.3).
//!
//! What is held does nothing but acknowledge. One of a connection waits: what comes later says the
//! same and more, so it takes the place of the one that waits and keeps its time, or goes at once
//! and the other is freed. An endpoint and its tenant have as many of [`MOST`] together as they
//! leave free, and what waits is charged to the endpoint's part of the frame memory; beyond,
//! acknowledgements go at once.

use super::Owner;
use crate::frame::{self, Fifo, Frame, Pool};
use crate::ids::EndpointId;
use crate::table::Id;
use crate::units::Instant;
use crate::wheel::Wheel;

/// Acknowledgements that wait, at most. With one each 20 ms for two segments, so many connections
/// have 5 Gbit/s.
pub const MOST: u16 = 4096;
/// The longest wait, in microseconds: half of what a delayed acknowledgement may take on Linux, and
/// a tenth of its shortest timeout. 800 connections of two segments each 20 ms fill 1 Gbit/s.
pub(super) const LONGEST_US: u32 = 20_000;
/// What a tail loss probe waits beyond two round trips, less some for what else takes time.
const PROBE_SLACK_US: u32 = 1_500;
const US: u64 = 1_000;
/// No place.
pub const NONE: u16 = u16::MAX;

/// A place for one that waits.
#[derive(Debug, Default)]
struct HoldEntry {
    /// Holds one frame, or none.
    frame: Fifo,
    whose: Option<(Owner, Id)>,
}

/// All acknowledgements that wait.
#[derive(Debug)]
pub struct Holds {
    places: Vec<HoldEntry>,
    vacant: Vec<u16>,
    wheel: Wheel,
    /// By endpoint and by tenant, how many wait.
    endpoints: Vec<u32>,
    tenants: Vec<u32>,
}

impl Holds {
    /// Takes all memory that it will need for endpoints 0..`endpoints` and as many tenants.
    pub fn new() -> Holds {
        Holds {
            places: (0..MOST).map(|_| HoldEntry::default()).collect(),
            vacant: (0..MOST).rev().collect(),
            wheel: Wheel::new(MOST.into()),
            endpoints: Vec::new(),
            tenants: Vec::new(),
        }
    }

    /// There is such an owner.
    pub fn expect(&mut self, owner: Owner) {
        for (list, at) in [(&mut self.endpoints, owner.endpoint.0), (&mut self.tenants, owner.tenant.0)] {
            if list.len() <= at as usize {
                list.resize(at as usize + 1, 0);
            }
        }
    }

    /// Lets a frame wait for `wait_us`, in the place of one of the same connection if there is one
    /// (`place`). Where it waits now.
    ///
    /// # Errors
    /// There is no room: the frame, which goes at once.
    pub fn hold(
        &mut self,
        pool: &mut Pool,
        (now, wait_us): (Instant, u32),
        (owner, id, place): (Owner, Id, u16),
        memory: frame::Owner,
        frame: Frame,
    ) -> Result<u16, Frame> {
        if self.is_of(place, id) {
            let queue = &mut self.places[usize::from(place)].frame;
            queue.clear(pool);
            queue.push(pool, frame);
            return Ok(place);
        }
        let (endpoint, tenant) = (owner.endpoint.0 as usize, owner.tenant.0 as usize);
        let counts = self.endpoints.get(endpoint).zip(self.tenants.get(tenant));
        let has_room = counts.is_some_and(|(of_one, of_all)| ((of_one + of_all) as usize) < self.vacant.len());
        if !has_room || !pool.may_wait(memory, pool.class(&frame), 0) {
            return Err(frame);
        }
        let Some(place) = self.vacant.pop() else { return Err(frame) };
        let HoldEntry { frame: queue, whose } = &mut self.places[usize::from(place)];
        queue.own(memory);
        queue.push(pool, frame);
        *whose = Some((owner, id));
        self.endpoints[endpoint] += 1;
        self.tenants[tenant] += 1;
        self.wheel.insert(place.into(), now, now.plus_ns(u64::from(wait_us.min(LONGEST_US)) * US));
        Ok(place)
    }

    /// The next frame whose time has come: for whom, of which connection, and where it waited.
    pub fn due(&mut self, pool: &mut Pool, now: Instant) -> Option<(EndpointId, Id, u16, Frame)> {
        loop {
            let place = self.wheel.expire(now)? as u16;
            if let Some((owner, id, frame)) = self.take(pool, place) {
                return Some((owner.endpoint, id, place, frame));
            }
        }
    }

    /// When that is.
    #[must_use]
    pub fn next_due(&self) -> Option<Instant> {
        self.wheel.next_due()
    }

    /// What a connection had waiting is said by a later frame.
    pub fn supersede(&mut self, pool: &mut Pool, id: Id, place: u16) {
        if self.is_of(place, id)
            && let Some((_, _, frame)) = self.take(pool, place)
        {
            self.wheel.remove(place.into());
            pool.free(frame);
        }
    }

    /// Charges what an endpoint's connections have waiting to another.
    pub fn set_owner(&mut self, pool: &mut Pool, endpoint: EndpointId, memory: frame::Owner) {
        if self.count(endpoint) > 0 {
            let theirs = |place: &&mut HoldEntry| place.whose.is_some_and(|(owner, _)| owner.endpoint == endpoint);
            self.places.iter_mut().filter(theirs).for_each(|place| place.frame.set_owner(pool, memory));
        }
    }

    /// Frees what an endpoint's connections have waiting; how many that were.
    pub fn clear_endpoint(&mut self, pool: &mut Pool, endpoint: EndpointId) -> u32 {
        let count = self.count(endpoint);
        for place in 0..if count > 0 { MOST } else { 0 } {
            if self.places[usize::from(place)].whose.is_some_and(|(owner, _)| owner.endpoint == endpoint)
                && let Some((_, _, frame)) = self.take(pool, place)
            {
                self.wheel.remove(place.into());
                pool.free(frame);
            }
        }
        count
    }

    /// Frees all.
    pub fn clear(&mut self, pool: &mut Pool) {
        for place in 0..MOST {
            if let Some((_, _, frame)) = self.take(pool, place) {
                self.wheel.remove(place.into());
                pool.free(frame);
            }
        }
    }

    /// How many wait.
    #[must_use]
    pub fn frames(&self) -> usize {
        usize::from(MOST) - self.vacant.len()
    }

    fn count(&self, endpoint: EndpointId) -> u32 {
        self.endpoints.get(endpoint.0 as usize).copied().unwrap_or(0)
    }

    fn is_of(&self, place: u16, id: Id) -> bool {
        self.places.get(usize::from(place)).is_some_and(|place| place.whose.is_some_and(|(_, other)| other == id))
    }

    fn take(&mut self, pool: &mut Pool, place: u16) -> Option<(Owner, Id, Frame)> {
        let HoldEntry { frame, whose } = &mut self.places[usize::from(place)];
        let (owner, id) = whose.take()?;
        let frame = frame.pop(pool)?;
        self.endpoints[owner.endpoint.0 as usize] -= 1;
        self.tenants[owner.tenant.0 as usize] -= 1;
        self.vacant.push(place);
        Some((owner, id, frame))
    }
}

/// How long the acknowledgement waits that tells a guest of `two` segments, where the controller
/// allows `window` bytes, in microseconds.
#[must_use]
pub fn wait_us(srtt_us: u32, two: u32, window: u32) -> u32 {
    let wait = u64::from(srtt_us) * u64::from(two.saturating_sub(window)) / u64::from(window.max(1));
    wait.min(u64::from(LONGEST_US)) as u32
}

/// The same for a guest whose earlier acknowledgements have waited for `usual_us` on average: no
/// longer than it takes before its tail loss probe sends again what has arrived. That goes off
/// after twice the guest's own smoothed round trip, of which the waits are a part, and two
/// milliseconds (RFC 8985, section 7.2; Linux).
#[must_use]
pub fn patient_us(wait_us: u32, usual_us: u32) -> u32 {
    wait_us.min(usual_us.saturating_mul(2).saturating_add(PROBE_SLACK_US))
}

/// What acknowledgements wait for on average, with one more: the guest's own gain of an eighth
/// (RFC 6298).
#[must_use]
pub fn usual_us(before_us: u32, wait_us: u32) -> u32 {
    before_us - before_us / 8 + wait_us / 8
}

/// The window that the longest wait amounts to.
#[must_use]
pub(super) fn least_window(srtt_us: u32, two: u32) -> u32 {
    let (srtt, longest) = (u64::from(srtt_us), u64::from(LONGEST_US));
    (u64::from(two) * srtt / (srtt + longest)).max(1) as u32
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::frame::PoolLimits;
    use crate::ids::TenantId;
    use crate::wire::build::eth;
    use crate::wire::{Mac, parse};

    fn owner(endpoint: u32) -> Owner {
        Owner { tenant: TenantId(endpoint / 4), endpoint: EndpointId(endpoint) }
    }

    fn frame(pool: &mut Pool, number: u8) -> Frame {
        let bytes = eth(Mac([2, 0, 0, 0, 0, 1]), Mac([2, 0, 0, 0, 0, number])).payload(vec![number; 50]).bytes();
        let frame = pool.alloc_from(&bytes).expect("room");
        pool.meta_mut(&frame).layout = parse(&bytes).unwrap_or_default();
        frame
    }

    fn holds(pool: PoolLimits) -> (Holds, Pool) {
        let mut holds = Holds::new();
        (0..16).for_each(|endpoint| holds.expect(owner(endpoint)));
        (holds, Pool::new(pool))
    }

    const WIDE: PoolLimits = PoolLimits { small: 8192, medium: 4, large: 4 };

    #[test]
    fn one_of_a_connection_waits_and_the_later_takes_its_place_and_time() {
        let (mut holds, mut pool) = holds(WIDE);
        let now = Instant(1_000_000_000);
        let first = frame(&mut pool, 1);
        let place = holds.hold(&mut pool, (now, 1000), (owner(0), Id(7), NONE), frame::Owner::NOBODY, first).unwrap();
        let later = frame(&mut pool, 2);
        let again = holds
            .hold(&mut pool, (now.plus_ns(500_000), 9000), (owner(0), Id(7), place), frame::Owner::NOBODY, later)
            .unwrap();
        assert_eq!((again, holds.frames(), pool.in_use()), (place, 1, 1));
        assert!(holds.due(&mut pool, now.plus_ns(999_000)).is_none());
        let (endpoint, id, _, frame) = holds.due(&mut pool, now.plus_ns(1_010_000)).expect("it is time");
        assert_eq!((endpoint, id, pool.bytes(&frame)[5]), (EndpointId(0), Id(7), 2));
        pool.free(frame);
        assert_eq!((holds.frames(), holds.next_due(), pool.in_use()), (0, None, 0));
    }

    #[test]
    fn what_a_later_frame_says_is_freed_and_an_endpoint_that_goes_takes_its_own_along() {
        let (mut holds, mut pool) = holds(WIDE);
        let mut places = Vec::new();
        for endpoint in 0..2 {
            let frame = frame(&mut pool, 1);
            let whose = (owner(endpoint), Id(endpoint), NONE);
            places.push(holds.hold(&mut pool, (Instant(0), 1000), whose, frame::Owner::NOBODY, frame).unwrap());
        }
        holds.supersede(&mut pool, Id(1), places[0]);
        assert_eq!(holds.frames(), 2, "another's place");
        holds.supersede(&mut pool, Id(0), places[0]);
        assert_eq!((holds.frames(), pool.in_use()), (1, 1));
        assert_eq!(holds.clear_endpoint(&mut pool, EndpointId(1)), 1);
        assert_eq!((holds.frames(), pool.in_use(), holds.next_due()), (0, 0, None));
    }

    #[test]
    fn who_has_much_leaves_others_their_part() {
        let (mut holds, mut pool) = holds(WIDE);
        let mut took = [0; 12];
        for number in 0..3 * MOST {
            // Two tenants of four endpoints each, who all want as many as they can get; then one
            // of a third tenant.
            let endpoint = if number < 2 * MOST { number % 8 } else { 8 };
            let frame = frame(&mut pool, 1);
            match holds.hold(
                &mut pool,
                (Instant(0), 1000),
                (owner(endpoint.into()), Id(number.into()), NONE),
                frame::Owner::NOBODY,
                frame,
            ) {
                Ok(_) => took[endpoint as usize] += 1,
                Err(frame) => pool.free(frame),
            }
        }
        let (most, least) = (took[..8].iter().max(), took[..8].iter().min());
        assert!(most.zip(least).is_some_and(|(most, least)| most - least <= 1), "alike: {took:?}");
        assert!(took[0] > MOST / 14 && took[8] > took[0], "{took:?}");
        holds.clear(&mut pool);
        assert_eq!(pool.in_use(), 0);
        let alone = (0..MOST).filter(|&number| {
            let frame = frame(&mut pool, 1);
            let whose = (owner(0), Id(number.into()), NONE);
            let held = holds.hold(&mut pool, (Instant(0), 1000), whose, frame::Owner::NOBODY, frame);
            held.map_err(|frame| pool.free(frame)).is_ok()
        });
        assert_eq!(alone.count(), MOST as usize / 3 + 1);
        holds.clear(&mut pool);
    }

    #[test]
    fn the_wait_makes_two_segments_the_window() {
        assert_eq!(wait_us(100, 2000, 2000), 0);
        assert_eq!(wait_us(100, 2000, 1000), 100);
        assert_eq!(wait_us(100, 2000, 200), 900);
        assert_eq!(wait_us(1000, 2000, 0), LONGEST_US);
        assert_eq!((patient_us(9000, 0), patient_us(9000, 2000), patient_us(900, 0)), (1500, 5500, 900));
        for srtt in [50, 300, 5000, 100_000] {
            let least = least_window(srtt, 2000);
            assert!(wait_us(srtt, 2000, least) >= LONGEST_US - LONGEST_US / 20, "{srtt}: {least}");
        }
    }
}
