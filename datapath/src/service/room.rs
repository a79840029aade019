//! Room for connections that wait (see [`super::held`]): whose it is, and how it is shared.
//!
//! Each tenant has [`OWN`] places, of which one of its buckets (see [`super::connections`]) takes a
//! quarter at most. Who finds none of these takes one of [`COMMON`] places of the switch. Of them a
//! tenant has at most as many as it leaves free, and one bucket at most as many as it leaves to its
//! tenant of that. So one client alone may have many that wait, many that take common places come
//! to have as many each, and a flood takes neither other tenants' own places nor those that others
//! of its tenant had before there were common ones.

use super::connections::{BUCKETS, Opener};

/// Places of each tenant.
pub(super) const OWN: u16 = 1024;
/// Of those, what one bucket takes at most.
const OF_BUCKET: u16 = OWN / 4;
/// Places of a switch beyond those of its tenants.
pub(super) const COMMON: u16 = 4096;

/// Where one waits.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Quota {
    /// At a place of its tenant.
    Own,
    /// At one of the switch.
    Common,
}

/// How many wait.
#[derive(Clone, Copy, Debug, Default)]
struct Waiting {
    own: u16,
    common: u16,
}

impl Waiting {
    fn at(&mut self, place: Quota) -> &mut u16 {
        match place {
            Quota::Own => &mut self.own,
            Quota::Common => &mut self.common,
        }
    }
}

/// What a tenant has waiting.
#[derive(Clone, Debug)]
struct OfTenant {
    all: Waiting,
    buckets: [Waiting; BUCKETS as usize],
}

const NONE: OfTenant =
    OfTenant { all: Waiting { own: 0, common: 0 }, buckets: [Waiting { own: 0, common: 0 }; BUCKETS as usize] };

/// See the module.
#[derive(Debug, Default)]
pub(super) struct Room {
    tenants: Vec<OfTenant>,
    /// Common places that are taken.
    common: u16,
}

impl Room {
    /// Where one more of these would wait; nowhere, where there is no room.
    pub(super) fn place(&self, opener: Opener) -> Option<Quota> {
        let tenant = self.tenants.get(opener.owner as usize).unwrap_or(&NONE);
        let (all, bucket) = (tenant.all, tenant.buckets[opener.bucket as usize]);
        if all.own < OWN && bucket.own < OF_BUCKET {
            return Some(Quota::Own);
        }
        let left_to_tenant = COMMON.saturating_sub(self.common).saturating_sub(all.common);
        (bucket.common < left_to_tenant).then_some(Quota::Common)
    }

    pub(super) fn enter(&mut self, opener: Opener, place: Quota) {
        let at = opener.owner as usize;
        if self.tenants.len() <= at {
            self.tenants.resize(at + 1, NONE);
        }
        let tenant = &mut self.tenants[at];
        *tenant.all.at(place) += 1;
        *tenant.buckets[opener.bucket as usize].at(place) += 1;
        self.common += u16::from(place == Quota::Common);
    }

    pub(super) fn leave(&mut self, opener: Opener, place: Quota) {
        let tenant = &mut self.tenants[opener.owner as usize];
        *tenant.all.at(place) -= 1;
        *tenant.buckets[opener.bucket as usize].at(place) -= 1;
        self.common -= u16::from(place == Quota::Common);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(owner: u32, bucket: u32) -> Opener {
        Opener { owner, bucket }
    }

    /// As many come as find room, up to `most`.
    fn flood(room: &mut Room, opener: Opener, most: u32) -> u32 {
        let mut come = 0;
        while come < most
            && let Some(place) = room.place(opener)
        {
            room.enter(opener, place);
            come += 1;
        }
        come
    }

    #[test]
    fn one_client_alone_has_a_third_of_the_common_places_too() {
        let mut room = Room::default();
        assert_eq!(flood(&mut room, of(0, 0), u32::MAX), 256 + 4096 / 3 + 1);
        // What leaves makes room again, and each where it was.
        for place in [Quota::Own, Quota::Common, Quota::Common] {
            room.leave(of(0, 0), place);
        }
        assert_eq!(flood(&mut room, of(0, 0), u32::MAX), 3);
    }

    #[test]
    fn a_flood_of_one_bucket_leaves_the_others_of_its_tenant_what_they_had() {
        let mut room = Room::default();
        flood(&mut room, of(0, 0), u32::MAX);
        for bucket in 1..4 {
            assert!(flood(&mut room, of(0, bucket), 256) == 256, "{bucket}");
        }
        // And some of what is common.
        assert!(flood(&mut room, of(0, 4), u32::MAX) > 256);
    }

    #[test]
    fn floods_of_all_others_leave_each_tenant_its_own_places() {
        let mut room = Room::default();
        for owner in 1..100 {
            let come: u32 = (0..BUCKETS).map(|bucket| flood(&mut room, of(owner, bucket), u32::MAX)).sum();
            assert!((1024..=1024 + 2048).contains(&come), "tenant {owner}: {come}");
            assert!(room.common <= COMMON);
        }
        let honest: u32 = (0..4).map(|bucket| flood(&mut room, of(0, bucket), 256)).sum();
        assert_eq!(honest, 1024);
    }

    #[test]
    fn tenants_that_come_and_go_share_the_common_places_alike_in_the_end() {
        let mut room = Room::default();
        let (first, second) = (of(1, 0), of(2, 0));
        flood(&mut room, first, u32::MAX);
        let common = |room: &Room, opener: Opener| room.tenants[opener.owner as usize].all.common;
        for _ in 0..5000 {
            for opener in [first, second] {
                if room.tenants.get(opener.owner as usize).is_some_and(|tenant| tenant.all.common > 0) {
                    room.leave(opener, Quota::Common);
                }
                flood(&mut room, opener, u32::MAX);
            }
        }
        let (one, other) = (common(&room, first), common(&room, second));
        assert!(one.abs_diff(other) <= 2 && one > 900, "{one} and {other}");
    }
}
