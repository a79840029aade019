//! A backend's refusal becomes the SYN that it refuses, and goes to another backend.

use super::{Served, dropped, untagged_for};
use crate::frame::{Frame, Meta, Pool};
use crate::network::Network;
use crate::program::EndpointId;
use crate::service::{Again, Failure, Known};
use crate::switch::Switch;
use crate::switch::parse::{parse, source};
use crate::units::Instant;
use crate::verdict::Reason;
use crate::wire::L4;

impl Switch {
    /// A backend's reset or ICMP error becomes the SYN that it refuses, for another backend.
    #[cold]
    pub(super) fn retry(
        &mut self,
        pool: &mut Pool,
        now: Instant,
        (known, failure): (&Known, Failure),
        (network, from): (Network, Option<EndpointId>),
        frame: Frame,
    ) -> Result<Served, Reason> {
        let Meta { layout, offload, .. } = *pool.meta(&frame);
        let asker = self.client(now, network, known, pool.bytes(&frame));
        let sender = asker.filter(|_| from.is_none());
        let Some(syn) = self.services.syn(known, pool.bytes(&frame), &untagged_for(sender, &layout)) else {
            return dropped(pool, frame, Reason::ServiceRetry);
        };
        let tries = self.services.tries(known);
        let again = Again { avoid: known.backend, failure, tries };
        // One outside may get no backend that is outside too.
        let chosen = match self.services.choose(now, known.key, asker, true, Some(again)) {
            Ok(chosen) => chosen,
            // None that its client may have. The failure is counted.
            Err(Reason::ServiceDown) => {
                let own = source(pool.bytes(&frame));
                let director = self.services.director(known).filter(|_| from.is_none());
                self.services.close(now, known);
                let bytes = pool.bytes_mut(&frame);
                let may_return = match layout.l4 {
                    L4::Tcp => self.services.back((now, from), known, bytes, &layout, &offload),
                    _ => {
                        self.services.error(known, false, bytes, &layout, &offload);
                        false
                    }
                };
                self.keep_own(pool, now, from, &frame, own);
                return Ok(Served::to(frame, may_return, director));
            }
            Err(reason) => return dropped(pool, frame, reason),
        };
        pool.set_len(&frame, syn.bytes().len());
        if pool.len(&frame) != syn.bytes().len() {
            return dropped(pool, frame, Reason::ServiceRetry);
        }
        pool.bytes_mut(&frame).copy_from_slice(syn.bytes());
        pool.meta_mut(&frame).offload = syn.offload;
        if let Err(reason) = parse(pool, &frame) {
            return dropped(pool, frame, reason);
        }
        let layout = pool.meta(&frame).layout;
        let director = match self.turn_around(now, asker, &chosen, source(syn.bytes())) {
            Ok(director) => director,
            Err(reason) => return dropped(pool, frame, reason),
        };
        self.services.keep(&chosen, syn.bytes(), &layout, &syn.offload);
        self.services.forward(now, &chosen, pool.bytes_mut(&frame), &layout, &syn.offload);
        match sender {
            // It is its SYN, which goes from where it is.
            Some(sender) => self.go_on(pool, now, sender, frame, true).map(|()| Served::Taken),
            None => Ok(Served::to(frame, true, director)),
        }
    }
}
