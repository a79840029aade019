//! One group: who is next of those below it, by start-time fair queueing (Goyal, Vin and Cheng,
//! SIGCOMM 1996).
//!
//! A *tag* counts what a member has had, in time by its weight. The member with the least tag of
//! those that have something to do is next, and that tag is the group's clock. Whoever wakes starts
//! at the later of its own tag and the clock: so idle time is never banked, what was owed is still
//! owed, and nobody who comes waits until others have made up for what they are behind. Of equal
//! tags, one that woke comes before one that was served since.

/// Fractional bits of a tag: 1 us at the largest weight is 1000 units.
const BITS: u32 = 16;

/// Members that have a place, in the order of their tags where they are ready.
#[derive(Debug, Default)]
pub(super) struct Group {
    members: Vec<Member>,
    free: Vec<u32>,
    clock: u128,
    /// A binary heap of those that are ready.
    heap: Vec<Entry>,
}

#[derive(Clone, Copy, Debug)]
struct Member {
    seat: u32,
    weight: u32,
    tag: u128,
    /// Its place in the heap, where it is ready.
    at: Option<u32>,
}

/// By tag; of equal tags who woke is first.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
struct Entry {
    tag: u128,
    was_served: bool,
    place: u32,
}

impl Group {
    /// Adds a member; its place.
    pub fn add(&mut self, seat: u32, weight: u32) -> u32 {
        let member = Member { seat, weight: weight.clamp(1, 65_535), tag: self.clock, at: None };
        if let Some(place) = self.free.pop() {
            self.members[place as usize] = member;
            return place;
        }
        self.members.push(member);
        self.free.reserve(self.members.len());
        self.heap.reserve(self.members.len() - self.heap.len());
        self.members.len() as u32 - 1
    }

    /// Takes away a member that is not ready.
    pub fn remove(&mut self, place: u32) {
        self.sleep(place);
        self.free.push(place);
    }

    pub fn is_empty(&self) -> bool {
        self.free.len() == self.members.len()
    }

    /// What the member owes stays the same time.
    pub fn set_weight(&mut self, place: u32, weight: u32) {
        let clock = self.clock;
        let member = &mut self.members[place as usize];
        let (before, after) = (u128::from(member.weight), u128::from(weight.clamp(1, 65_535)));
        member.weight = after as u32;
        if member.tag > clock {
            member.tag = clock + (member.tag - clock) * before / after;
            self.file(place);
        }
    }

    pub fn wake(&mut self, place: u32) {
        let member = &mut self.members[place as usize];
        if member.at.is_none() {
            member.tag = member.tag.max(self.clock);
            let (entry, last) = (Entry { tag: member.tag, was_served: false, place }, self.heap.len());
            self.heap.push(entry);
            self.sift(last, entry);
        }
    }

    pub fn sleep(&mut self, place: u32) {
        let Some(at) = self.members[place as usize].at.take() else { return };
        self.heap.swap_remove(at as usize);
        if let Some(&moved) = self.heap.get(at as usize) {
            self.sift(at as usize, moved);
        }
    }

    /// The seat of who is next.
    pub fn first(&mut self) -> Option<u32> {
        let first = self.heap.first()?;
        self.clock = self.clock.max(first.tag);
        Some(self.members[first.place as usize].seat)
    }

    /// A member, ready or not, has had `cost_ns`: below 2^48, three days.
    pub fn charge(&mut self, place: u32, cost_ns: u64) {
        let member = &mut self.members[place as usize];
        member.tag = member.tag.max(self.clock) + u128::from((cost_ns << BITS) / u64::from(member.weight));
        self.file(place);
    }

    /// Puts a member whose tag has changed where it belongs, if it is ready.
    fn file(&mut self, place: u32) {
        let Member { tag, at, .. } = self.members[place as usize];
        if let Some(at) = at {
            self.sift(at as usize, Entry { tag, was_served: true, place });
        }
    }

    /// Puts `entry` at `at`, or up or down from there until the heap is a heap again.
    fn sift(&mut self, mut at: usize, entry: Entry) {
        while at > 0 && entry < self.heap[(at - 1) / 2] {
            self.put(at, self.heap[(at - 1) / 2]);
            at = (at - 1) / 2;
        }
        loop {
            let mut least = 2 * at + 1;
            if least + 1 < self.heap.len() && self.heap[least + 1] < self.heap[least] {
                least += 1;
            }
            if least >= self.heap.len() || self.heap[least] >= entry {
                break;
            }
            self.put(at, self.heap[least]);
            at = least;
        }
        self.put(at, entry);
    }

    fn put(&mut self, at: usize, entry: Entry) {
        self.heap[at] = entry;
        self.members[entry.place as usize].at = Some(at as u32);
    }
}
