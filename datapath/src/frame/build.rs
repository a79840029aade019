//! Built frames in a pool.

use super::{Frame, Pool};
use crate::wire::build::Build;
use crate::wire::parse;

impl Build<'_> {
    /// The frame in a pool, with layout and offload metadata. `None` where the pool has no buffer.
    ///
    /// # Panics
    /// Where what was built does not parse.
    pub fn frame(&self, pool: &mut Pool) -> Option<Frame> {
        let mut bytes = Vec::new();
        let offload = self.write(&mut bytes);
        let frame = pool.alloc_from(&bytes)?;
        let meta = pool.meta_mut(&frame);
        meta.offload = offload;
        meta.layout = parse(&bytes).expect("a well-formed frame");
        Some(frame)
    }
}
