//! Two ports joined in memory: what one is handed, the other reads. For tests of what is built on
//! ports.

use std::collections::VecDeque;
use std::os::fd::BorrowedFd;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use datapath::frame::{Frame, MAX_FRAME, Pool};
use datapath::offload::{Offload, OffloadSupport};

use crate::{Features, Port, PortError, Refused};

type Queue = Arc<Mutex<VecDeque<(Vec<u8>, Offload)>>>;

/// One end of a pair. The ends may have different pools and be on different threads. When one end
/// is dropped, the other is gone.
#[derive(Debug)]
pub struct PairPort {
    features: Features,
    frames: usize,
    out: Queue,
    back: Queue,
}

/// Two ports, each of which takes `offload` and holds up to `frames` frames that the other has not
/// read yet.
#[must_use]
pub fn pair(frames: usize, offload: OffloadSupport) -> (PairPort, PairPort) {
    let features = Features { offload, can_pause: true, reports_drops: true, max_frame: MAX_FRAME };
    let (a, b) = (Queue::default(), Queue::default());
    let one = PairPort { features, frames, out: Arc::clone(&a), back: Arc::clone(&b) };
    (one, PairPort { features, frames, out: b, back: a })
}

impl PairPort {
    fn other_is_gone(&self) -> bool {
        Arc::strong_count(&self.out) == 1
    }
}

fn lock(queue: &Queue) -> MutexGuard<'_, VecDeque<(Vec<u8>, Offload)>> {
    // Every change of the queue is whole: a thread that panicked elsewhere has left nothing half
    // done.
    queue.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Port for PairPort {
    fn features(&self) -> Features {
        self.features
    }

    fn fd(&self) -> Option<BorrowedFd<'_>> {
        None
    }

    fn rx(&mut self, pool: &mut Pool, burst: usize, out: &mut Vec<Frame>) -> Result<usize, PortError> {
        let mut waiting = lock(&self.back);
        for read in 0..burst {
            let Some((bytes, offload)) = waiting.front() else {
                return if read == 0 && self.other_is_gone() {
                    Err(PortError::Gone("the pair's other end is gone".into()))
                } else {
                    Ok(read)
                };
            };
            let Some(frame) = pool.alloc_from(bytes) else {
                return Ok(read);
            };
            pool.meta_mut(&frame).offload = *offload;
            waiting.pop_front();
            out.push(frame);
        }
        Ok(burst)
    }

    fn write(&mut self, pool: &mut Pool, frame: &Frame) -> Result<(), Refused> {
        let offload = pool.meta(frame).offload;
        if self.other_is_gone() {
            Err(Refused::Gone)
        } else if !self.features.offload.takes(&offload) {
            Err(Refused::Invalid)
        } else if lock(&self.out).len() >= self.frames {
            Err(Refused::Full)
        } else {
            lock(&self.out).push_back((pool.bytes(frame).to_vec(), offload));
            Ok(())
        }
    }

    fn drops_before_us(&mut self) -> Result<u64, PortError> {
        Ok(0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use datapath::frame::PoolLimits;
    use datapath::offload::Gso;

    #[test]
    fn frames_arrive_whole_in_order_and_with_their_offload() {
        let mut pool = Pool::new(PoolLimits::default());
        let (mut a, mut b) = pair(8, OffloadSupport::ALL);
        for i in 0..3 {
            let frame = pool.alloc_from(&vec![i; 60 + 3000 * usize::from(i)]).unwrap();
            pool.meta_mut(&frame).offload = Offload { gso: Gso::Udp, gso_size: 100, ..Offload::default() };
            a.tx(&mut pool, frame).unwrap();
        }
        let mut got = Vec::new();
        assert_eq!(b.rx(&mut pool, 2, &mut got).unwrap(), 2);
        assert_eq!(b.rx(&mut pool, 2, &mut got).unwrap(), 1);
        assert_eq!(b.rx(&mut pool, 2, &mut got).unwrap(), 0);
        for (i, frame) in got.into_iter().enumerate() {
            assert_eq!(pool.bytes(&frame), vec![i as u8; 60 + 3000 * i]);
            assert_eq!(pool.meta(&frame).offload.gso_size, 100);
            pool.free(frame);
        }
        assert_eq!(pool.in_use(), 0);
    }

    #[test]
    fn a_full_pair_a_lone_end_and_an_offload_it_does_not_take_refuse() {
        let mut pool = Pool::new(PoolLimits::default());
        let (mut a, b) = pair(1, OffloadSupport::NONE);
        let frame = pool.alloc(60).unwrap();
        a.tx(&mut pool, frame).unwrap();
        let frame = pool.alloc(60).unwrap();
        assert_eq!(a.tx(&mut pool, frame), Err(Refused::Full));
        let frame = pool.alloc(60).unwrap();
        pool.meta_mut(&frame).offload.needs_csum = true;
        assert_eq!(a.tx(&mut pool, frame), Err(Refused::Invalid));
        drop(b);
        let frame = pool.alloc(60).unwrap();
        assert_eq!(a.tx(&mut pool, frame), Err(Refused::Gone));
        assert!(matches!(a.rx(&mut pool, 1, &mut Vec::new()), Err(PortError::Gone(_))));
        assert_eq!(pool.in_use(), 0);
    }

    #[test]
    fn without_buffers_frames_wait() {
        let mut pool = Pool::new(PoolLimits { small: 1, medium: 0, large: 0 });
        let (mut a, mut b) = pair(8, OffloadSupport::ALL);
        for _ in 0..2 {
            let frame = pool.alloc(60).unwrap();
            a.tx(&mut pool, frame).unwrap();
        }
        let mut got = Vec::new();
        assert_eq!(b.rx(&mut pool, 8, &mut got).unwrap(), 1);
        assert_eq!(b.rx(&mut pool, 8, &mut got).unwrap(), 0);
        pool.free(got.pop().unwrap());
        assert_eq!(b.rx(&mut pool, 8, &mut got).unwrap(), 1);
        pool.free(got.pop().unwrap());
    }
}
