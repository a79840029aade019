//! Thinning: the destinations of whose frames a port is to drop a part before they take a place in
//! its ring.
//!
//! What is dropped by share has cost its reading. Where more arrives for one than can be read, the
//! ring overflows all the same, and frames of all are lost. So while the ring fills without a
//! pause, the port reads only a part of what is for a destination of which most is dropped
//! ([`Thinned::keep`]). The part falls until half of what is read is dropped at most. It rises
//! again where less is dropped, or where the ring has room, until all is read. Nobody is thinned
//! of whom nothing is dropped.
//!
//! Places are few ([`MOST`]). Who gets one is found by counting, as are the most frequent of a
//! stream (Misra and Gries 1982): of what is dropped in a window, each that has more than a ninth
//! is seen.

use crate::units::Instant;
use crate::wire::Mac;

use super::WINDOW_NS;

/// Destinations that are thinned at once: each costs the filter some instructions for each frame.
pub const MOST: usize = 8;
/// All of them: fixed point of [`Thinned::keep`].
const ALL: u64 = 1 << 32;
/// The least part that is read: of 15 million frames a second, what 10 Gbit/s carry, 15 000.
const LEAST: u64 = ALL >> 10;
/// Fewer drops in a window are not worth a place: reading them takes less than a hundredth of it.
const WORTH: u64 = 64;
/// The part falls to one of so many at a time at most, and then stays for so many windows: what was
/// in the ring before is read first. A ring of 20 000 frames takes 20 to 30 ms to be read.
const FALLS_BY: u64 = 8;
const STAYS: u64 = 3;
/// The ring fills without a pause if it does in all but one of so many reads.
const PAUSE_PART: u64 = 4;
/// If all that is sent in a window for those that are thinned could be read in so long, it is no
/// flood any more. Nor is what is sent for one of them, if nothing of it was dropped by share,
/// whatever is sent for others.
const CALM_NS: u64 = WINDOW_NS / 8;
/// A port is told when a part has changed by more than one of so many.
const WORDS_PART: u64 = 5;
/// Ports are told anew after so many windows: somebody may have set another filter.
const AGAIN: u64 = 100;
/// After so many windows without a frame nobody is thinned: the part doubles in each.
const SILENT: u64 = 10;

/// Where a frame goes, as the uplink's wire says it.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub struct Destination {
    /// VLAN of its network; `None` for no tag.
    pub vlan: Option<u16>,
    /// Its destination address.
    pub mac: Mac,
}

/// A destination of which a port reads a part.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Thinned {
    /// Which.
    pub to: Destination,
    /// How much of it is read, in 1/2^32, chosen at random.
    pub keep: u32,
}

/// What was read for a destination in this window.
#[derive(Clone, Copy, Debug)]
struct Seen {
    to: Destination,
    read: u64,
    dropped: u64,
    /// What reading it took, in nanoseconds.
    read_ns: u64,
}

impl Seen {
    fn new(to: Destination) -> Seen {
        Seen { to, read: 0, dropped: 0, read_ns: 0 }
    }

    fn note(&mut self, passes: bool, read_ns: u64) {
        self.read += 1;
        self.dropped += u64::from(!passes);
        self.read_ns += read_ns;
    }

    /// The part to read of what is read now so that half of it is dropped, where more is.
    fn falls(&self, keep: u64) -> Option<u64> {
        let passed = self.read - self.dropped;
        let to = (keep * 2 * passed).checked_div(self.read)?;
        (2 * self.dropped > self.read).then_some(to.max(keep / FALLS_BY).max(LEAST))
    }
}

/// A destination that has a place.
#[derive(Clone, Copy, Debug)]
struct ThinEntry {
    seen: Seen,
    /// The part that is to be read.
    keep: u64,
    /// The part that ports read.
    set: u64,
    /// What ports have dropped and was not told yet, in 1/`set`.
    rest: u64,
    /// It does not fall before this window.
    stays_until: u64,
    /// What was in the ring when ports were told of less says nothing of what they drop: from this
    /// window on, what is read does.
    tells_from: u64,
}

impl ThinEntry {
    /// About so much was sent for every 2^32 that were read.
    fn sent(&self, read: u64) -> u64 {
        (u128::from(read) * u128::from(ALL) / u128::from(self.set)) as u64
    }

    /// Whether little was sent for it in this window, and nothing of that dropped by share.
    fn is_calm(&self) -> bool {
        self.seen.dropped == 0 && self.sent(self.seen.read_ns) < CALM_NS
    }

    /// About so much of it was dropped in this window, by whomever.
    fn lost(&self) -> u64 {
        self.sent(self.seen.read) - self.seen.read + self.seen.dropped
    }
}

/// See the module.
#[derive(Debug)]
pub struct Thinning {
    window: u64,
    /// Reads in this window after which the ring filled, and all.
    full_reads: u64,
    reads: u64,
    /// Those that are thinned, [`MOST`] at most.
    places: Vec<ThinEntry>,
    /// Others of which something was dropped in this window, as many at most.
    others: Vec<Seen>,
    /// What ports are to do, as of the last window's end.
    list: Vec<Thinned>,
    /// Whether they do nearly that.
    is_told: bool,
    /// The window in which they were told last.
    told: u64,
    /// Ports cannot do it, and are not asked before this window.
    refused_until: u64,
}

impl Default for Thinning {
    fn default() -> Self {
        let (places, others, list) = (Vec::with_capacity(MOST), Vec::with_capacity(MOST), Vec::with_capacity(MOST));
        Thinning { window: 0, full_reads: 0, reads: 0, places, others, list, is_told: true, told: 0, refused_until: 0 }
    }
}

impl Thinning {
    /// Whether anybody is thinned.
    #[must_use]
    pub fn is_any(&self) -> bool {
        !self.places.is_empty()
    }

    /// The ring is read, and fills or does not.
    pub fn note_read(&mut self, fills: bool) {
        (self.full_reads, self.reads) = (self.full_reads + u64::from(fills), self.reads + 1);
    }

    /// A frame was read, which took so long, and passes or is dropped by share. About how many
    /// others to the same destination ports have dropped since the last one.
    pub fn note(&mut self, now: Instant, to: Destination, passes: bool, read_ns: u64) -> u64 {
        self.look(now);
        if let Some(place) = self.places.iter_mut().find(|place| place.seen.to == to) {
            place.seen.note(passes, read_ns);
            if self.window < place.tells_from {
                return 0;
            }
            place.rest += ALL - place.set;
            let lost = place.rest / place.set;
            place.rest %= place.set;
            return lost;
        }
        match self.others.iter_mut().find(|other| other.to == to) {
            Some(other) => other.note(passes, read_ns),
            None if passes => {}
            None => self.find_place(to, read_ns),
        }
        0
    }

    /// The first frame of a destination was dropped.
    fn find_place(&mut self, to: Destination, read_ns: u64) {
        if self.others.len() == MOST {
            // One drop of each for this one: who has had most is left.
            self.others.retain_mut(|other| {
                (other.read, other.dropped) = (other.read.saturating_sub(1), other.dropped - 1);
                other.dropped > 0
            });
            return;
        }
        let mut seen = Seen::new(to);
        seen.note(false, read_ns);
        self.others.push(seen);
    }

    /// Ends the windows that are over.
    pub fn look(&mut self, now: Instant) {
        let window = now.0 / WINDOW_NS;
        let over = window.saturating_sub(self.window);
        if over == 0 {
            return;
        }
        // Where there was something to read, it is the worker that has not run since: who sends in
        // such windows has not been seen.
        let most = if self.full_reads > 0 { 1 } else { SILENT + 1 };
        (0..over.min(most)).for_each(|_| self.end_window());
        self.window = window;
    }

    fn end_window(&mut self) {
        let (full_reads, reads) = (std::mem::take(&mut self.full_reads), std::mem::take(&mut self.reads));
        let fills_on = full_reads > 0 && PAUSE_PART * (reads - full_reads) <= reads;
        let sent_ns: u64 = self.places.iter().map(|place| place.sent(place.seen.read_ns)).sum();
        let is_calm = full_reads == 0 && sent_ns < CALM_NS;
        for place in &mut self.places {
            let ThinEntry { seen, keep, .. } = *place;
            place.keep = match seen.falls(keep).filter(|_| fills_on) {
                Some(less) if self.window >= place.stays_until => less,
                _ if 4 * seen.dropped > seen.read => keep,
                _ if is_calm || place.is_calm() => 2 * keep,
                _ => keep + keep / 16,
            };
            if place.keep < keep {
                place.stays_until = self.window + 1 + STAYS;
            }
        }
        if fills_on && self.window >= self.refused_until {
            self.give_places();
        }
        for place in &mut self.places {
            place.seen = Seen::new(place.seen.to);
        }
        self.others.clear();
        let is_far = |place: &ThinEntry| WORDS_PART * place.keep.abs_diff(place.set) > place.set;
        let is_old = !self.places.is_empty() && self.window >= self.told + AGAIN;
        self.is_told &= !is_old && !self.places.iter().any(is_far);
        let before = self.places.len();
        self.places.retain(|place| place.keep < ALL);
        self.is_told &= self.places.len() == before;
        self.list.clear();
        self.list.extend(self.places.iter().map(|place| Thinned { to: place.seen.to, keep: place.keep as u32 }));
    }

    /// Who has lost most gets a place: a free one, or that of one who has lost less than half of
    /// that.
    fn give_places(&mut self) {
        for other in &self.others {
            let Some(keep) = other.falls(ALL).filter(|_| other.dropped >= WORTH) else { continue };
            let stays_until = self.window + 1 + STAYS;
            let place = ThinEntry { seen: *other, keep, set: ALL, rest: 0, stays_until, tells_from: 0 };
            if self.places.len() < MOST {
                self.places.push(place);
            } else if let Some(least) = self.places.iter_mut().min_by_key(|place| place.lost())
                && 2 * least.lost() < other.dropped
            {
                *least = place;
                self.is_told = false;
            }
        }
    }

    /// What all ports of the uplink are to do, where they have not been told.
    pub fn news(&mut self, now: Instant) -> Option<&[Thinned]> {
        self.look(now);
        (!self.is_told && self.told != self.window).then_some(&self.list)
    }

    /// A port was not told what the others were: all are to be told again.
    pub fn tell_again(&mut self) {
        self.is_told &= self.places.is_empty();
    }

    /// Ports do what [`Thinning::news`] says from now on; or they do not, and read all.
    pub fn set_told(&mut self, is_done: bool) {
        (self.is_told, self.told) = (true, self.window);
        if !is_done {
            self.list.clear();
            self.places.clear();
            self.refused_until = self.window + AGAIN;
        }
        for place in &mut self.places {
            if place.keep < place.set {
                place.tells_from = self.window + STAYS;
            }
            (place.set, place.rest) = (place.keep, 0);
        }
    }

    /// When [`Thinning::news`] is to be asked: it has something to say, or may have then.
    #[must_use]
    pub fn due(&self) -> Option<Instant> {
        let is_now = !self.is_told && self.told != self.window;
        let window = if is_now { self.window } else { self.window + 1 };
        (!self.is_told || self.is_any()).then_some(Instant(window * WINDOW_NS))
    }
}

#[cfg(test)]
mod tests;
