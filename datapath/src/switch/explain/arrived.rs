//! A frame as it came in, before any stage has looked at it; of a bond, without its number.

use super::{Memory, Traveller};
use crate::bond::number;
use crate::frame::{Class, Frame, Pool};
use crate::offload::Offload;
use crate::segment;
use crate::verdict::Reason;
use crate::wire::{self, vlan};

#[derive(Clone, Copy)]
pub(super) struct Arrived<'a> {
    pub pool: &'a Pool,
    pub bytes: &'a [u8],
    pub offload: Offload,
    pub class: Class,
    pub headroom: usize,
}

impl<'a> Arrived<'a> {
    pub fn of(pool: &'a Pool, frame: &Frame) -> Arrived<'a> {
        Arrived {
            pool,
            bytes: pool.bytes(frame),
            offload: pool.meta(frame).offload,
            class: pool.class(frame),
            headroom: pool.headroom(frame),
        }
    }

    /// What is left of one that shows a number; `bytes` holds it.
    pub fn without_number(self, bytes: &'a mut Vec<u8>) -> Arrived<'a> {
        let offload;
        (*bytes, offload) = number::without(self.bytes, &self.offload);
        Arrived { bytes, offload, headroom: self.headroom + vlan::TAG, ..self }
    }

    /// What `parse` would write down.
    pub fn see(&self) -> Result<Traveller<'a>, Reason> {
        let Arrived { pool, bytes, mut offload, class, headroom } = *self;
        let layout = wire::parse(bytes)?;
        segment::check_offload(bytes, &layout, &offload)?;
        offload.gso_ecn = segment::meaning_of_cwr(bytes, &layout, &offload);
        Ok(Traveller {
            bytes,
            layout,
            offload,
            wire_bytes: segment::wire_bytes(bytes.len(), &layout, &offload),
            class,
            headroom,
            memory: Memory::new(pool),
            copy_class: pool.class_for(bytes.len()),
        })
    }
}
