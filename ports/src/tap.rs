//! `tap://NAME`: a kernel TAP device, the port for containers: the device is moved into their
//! namespace.
//!
//! Every frame is read and written behind a virtio header ([`crate::vnet`]), so that the endpoint's
//! kernel leaves segmentation and checksums to whoever needs them done: frames of up to 64 KiB
//! cross the switch whole. Reading goes straight into a buffer of the pool. The write call runs the
//! receiver's network stack and returns when the frame is in its socket or dropped there: there is
//! no queue to fill.
//!
//! What the endpoint sends waits in the device's ring (`txqueuelen` frames), which drops when it is
//! full; a TAP therefore cannot pause its senders, and [`Port::drops_before_us`] reports what was
//! lost there.
//!
//! How devices are made, found again and removed is in `device.rs`; where one is that somebody has
//! moved, in `whereabouts.rs`; how one becomes again what it was, in `undo.rs`.

mod device;
mod ioctl;
mod tag;
mod undo;
mod whereabouts;

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use datapath::frame::{Frame, HEADROOM, MAX_FRAME, Pool, SMALL};
use datapath::offload::OffloadSupport;
use rustix::io::Errno;

use crate::netns::{Identity, Netns};
use crate::rtnl::{KernelLink, Netlink, Which};
use crate::survey::Survey;
use crate::vnet::{self, HEADER_BYTES};
use crate::{BURST_BYTES, Features, Port, PortError, Refused};

pub(crate) use device::{
    DEFAULT_RING, Extent, check_names, configure, is_left, is_no_namespace, kernel, name, settle, within,
};
pub use device::{Found, OpenError, TapOptions, has_tagged, reconfigure, remove, remove_tagged};
pub use tag::Tag;
pub use undo::{as_it_is, set_persistent, take_back};
pub(crate) use undo::{look, put_back};
use whereabouts::Spot;
pub use whereabouts::Whereabouts;
pub(crate) use whereabouts::{LOOKS, namespace_of_id};

/// An open TAP device. Dropping it closes the device, which ends it unless it is persistent.
#[derive(Debug)]
pub struct Tap {
    fd: OwnedFd,
    name: String,
    /// What it was opened by, and for which namespace; `None` is ours.
    wanted: (String, Option<Netns>),
    /// See [`Port::known_as`].
    known_as: String,
    /// The namespace that it was opened for.
    home: Option<Identity>,
    /// See [`Port::whereabouts`].
    whereabouts: Option<Whereabouts>,
    features: Features,
    /// Set where the descriptor itself keeps the namespace alive: its deletion then shows only in
    /// its name.
    pinned: Option<(Netns, Identity)>,
    /// The id of the namespace the device was last seen in.
    seen_in: Option<(Identity, i32)>,
    /// The device's drops when it was opened, and when last asked.
    drops: Drops,
    /// Frames cut because only a small buffer was left; counted by the handle that reads, told by
    /// the one that is asked.
    cut: Arc<AtomicU64>,
    adopted: bool,
    made: bool,
    notes: Vec<String>,
}

#[derive(Clone, Copy, Debug, Default)]
struct Drops {
    at_open: u64,
    last: u64,
}

impl Tap {
    /// Opens a device: makes it, or takes it up again where it is Levada's and persistent. It is
    /// then in its namespace, configured and up.
    ///
    /// # Errors
    /// See [`OpenError`]. What was made is gone again; what existed before stays.
    pub fn open(options: &TapOptions) -> Result<Tap, OpenError> {
        Tap::open_among(options, &Survey::default())
    }

    /// As [`Tap::open`], one of many: `survey` is what they share.
    ///
    /// # Errors
    /// As [`Tap::open`].
    pub fn open_among(options: &TapOptions, survey: &Survey) -> Result<Tap, OpenError> {
        // Kept open only until the device is in it: who has a namespace open keeps it from ending.
        let netns = survey.entrance(options.netns.as_ref());
        let device = device::open(&TapOptions { netns: netns.clone(), ..options.clone() }, survey)?;
        let offload = OffloadSupport { uso: device.udp_segmentation, ..OffloadSupport::ALL };
        let mut tap = Tap {
            fd: device.fd,
            name: device.name,
            wanted: (options.name.clone(), options.netns.as_ref().map(Netns::released)),
            known_as: options.known_as(),
            home: netns.and_then(|netns| netns.identity().ok()),
            whereabouts: None,
            features: Features { offload, can_pause: false, reports_drops: false, max_frame: MAX_FRAME },
            pinned: device.pinned,
            seen_in: None,
            drops: Drops::default(),
            cut: Arc::default(),
            adopted: device.adopted,
            made: device.made,
            notes: device.notes,
        };
        if let Ok(drops) = tap.kernel_drops() {
            tap.features.reports_drops = true;
            tap.drops = Drops { at_open: drops, last: drops };
        }
        Ok(tap)
    }

    /// The device's name when it was opened.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Whether it was inherited and is still as another process left it: [`Tap::settle`] is to be
    /// called when that process has ended.
    #[must_use]
    pub fn is_adopted(&self) -> bool {
        self.adopted
    }

    /// Whether it was not there before, and was made.
    #[must_use]
    pub fn is_made(&self) -> bool {
        self.made
    }

    /// What the operator should know of how it was opened.
    #[must_use]
    pub fn notes(&self) -> &[String] {
        &self.notes
    }

    /// Brings an adopted device, of which `tap` is a descriptor, to what the options say, but for
    /// whether it is up. Where somebody has moved it from the namespace that the options name, what
    /// belongs to that is left as it is, and the answer says so.
    ///
    /// # Errors
    /// See [`OpenError`]. It goes on as it is.
    pub fn settle(options: &TapOptions, tap: BorrowedFd<'_>) -> Result<Option<String>, OpenError> {
        device::settle(options, tap, false)
    }

    /// As [`Tap::settle`], of a device that has come back to where it should be: it is also set up.
    ///
    /// # Errors
    /// See [`OpenError`]. It goes on as it is.
    pub fn welcome(options: &TapOptions, tap: BorrowedFd<'_>) -> Result<Option<String>, OpenError> {
        device::settle(options, tap, true)
    }

    /// Another handle on the same device.
    pub(crate) fn twin(&self) -> Option<Tap> {
        Some(Tap {
            fd: self.fd.try_clone().ok()?,
            name: self.name.clone(),
            wanted: self.wanted.clone(),
            known_as: self.known_as.clone(),
            home: self.home,
            whereabouts: self.whereabouts.clone(),
            features: self.features,
            pinned: self.pinned.clone(),
            seen_in: self.seen_in,
            drops: self.drops,
            cut: Arc::clone(&self.cut),
            adopted: self.adopted,
            made: self.made,
            notes: Vec::new(),
        })
    }

    /// Reads one frame; `None` where none waits or the pool has no buffer.
    fn read_frame(&mut self, pool: &mut Pool) -> Result<Option<Frame>, PortError> {
        // Where others hold all large buffers, endpoints with short frames still get through.
        let Some(frame) = pool.alloc(MAX_FRAME).or_else(|| pool.alloc(SMALL - HEADROOM)) else {
            return Ok(None);
        };
        let room = pool.len(&frame);
        // In one piece with its header, which is taken off again: a vector of two would cost the
        // kernel a tenth of a short frame's time.
        pool.push_front(&frame, HEADER_BYTES);
        let read = match rustix::io::read(&self.fd, pool.bytes_mut(&frame)) {
            Ok(read) => read,
            Err(errno) => {
                pool.free(frame);
                return if errno == Errno::AGAIN || errno == Errno::INTR {
                    Ok(None)
                } else {
                    Err(self.diagnose(errno))
                };
            }
        };
        let len = read.saturating_sub(HEADER_BYTES);
        if len == room && room < MAX_FRAME {
            // The kernel cuts what does not fit, without a word.
            pool.free(frame);
            self.cut.fetch_add(1, Ordering::Relaxed);
            return Ok(None);
        }
        let header = pool.bytes(&frame).first_chunk().copied().unwrap_or_default();
        pool.pull_front(&frame, HEADER_BYTES);
        pool.set_len(&frame, len);
        pool.meta_mut(&frame).offload = vnet::decode(&header);
        Ok(Some(pool.compact(frame)))
    }

    /// An error of a read call: that of a deleted device (tun_chr_read_iter), or of this one frame.
    /// Asking the kernel for more would wait for its lock on network devices, which is taken while
    /// devices are deleted.
    fn diagnose(&self, errno: Errno) -> PortError {
        match errno {
            Errno::BADFD => self.gone("the device, or the namespace it was in, was deleted"),
            _ => PortError::Io(errno.into()),
        }
    }

    fn gone(&self, how: &str) -> PortError {
        PortError::Gone(format!("tap {}: {how}", self.name))
    }

    /// What the device could not put into its ring since it was made, wherever it is by now. Takes
    /// note of where that is.
    fn kernel_drops(&mut self) -> io::Result<u64> {
        let Spot { netns, identity, name } = Spot::of(self.fd.as_fd())?;
        let own = Identity::own()?;
        let mut netlink = Netlink::open()?;
        let link = if identity == own {
            netlink.link(Which::Name(&name))?
        } else {
            let id = match self.seen_in {
                Some((seen, id)) if seen == identity => id,
                _ => netlink.id_of(netns.as_fd())?,
            };
            self.seen_in = Some((identity, id));
            netlink.link(Which::NameIn(&name, id))?
        };
        let link = link.ok_or(io::ErrorKind::NotFound)?;
        self.note(&link, identity, own);
        Ok(link.tx_dropped)
    }

    fn note(&mut self, link: &KernelLink, netns: Identity, own: Identity) {
        if self.home != Some(netns) {
            // A namespace that was made anew under its name is another; one that may not be looked
            // at is what it was.
            let home = self.wanted.1.as_ref().map_or(Some(own), |netns| netns.identity().ok());
            self.home = home.or(self.home);
        }
        self.whereabouts = Some(Whereabouts {
            name: link.name.clone(),
            netns,
            is_moved: self.home.is_some_and(|home| home != netns),
            is_renamed: link.name != self.wanted.0,
            is_up: link.is_up,
            has_carrier: link.has_carrier,
        });
    }
}

impl Port for Tap {
    fn features(&self) -> Features {
        self.features
    }

    fn fd(&self) -> Option<BorrowedFd<'_>> {
        Some(self.fd.as_fd())
    }

    fn rx(&mut self, pool: &mut Pool, burst: usize, out: &mut Vec<Frame>) -> Result<usize, PortError> {
        let (mut read, mut bytes) = (0, 0);
        while read < burst && bytes < BURST_BYTES {
            match self.read_frame(pool) {
                Ok(Some(frame)) => {
                    bytes += pool.len(&frame);
                    out.push(frame);
                    read += 1;
                }
                Err(error) if read == 0 => return Err(error),
                Ok(None) | Err(_) => break,
            }
        }
        Ok(read)
    }

    fn write(&mut self, pool: &mut Pool, frame: &Frame) -> Result<(), Refused> {
        let header = vnet::encode(&pool.meta(frame).offload, pool.bytes(frame));
        if !pool.push_front(frame, HEADER_BYTES) {
            return Err(Refused::Invalid);
        }
        let bytes = pool.bytes_mut(frame);
        bytes[..HEADER_BYTES].copy_from_slice(&header);
        let len = bytes.len();
        let written = rustix::io::write(&self.fd, bytes);
        pool.pull_front(frame, HEADER_BYTES);
        match written {
            Ok(written) if written == len => Ok(()),
            Err(Errno::AGAIN | Errno::INTR | Errno::NOBUFS | Errno::NOMEM) => Err(Refused::Full),
            // The kernel's answer while the interface is set down (tun_get_user).
            Err(Errno::IO) => Err(Refused::Down),
            Err(Errno::BADFD | Errno::NODEV) => Err(Refused::Gone),
            Ok(_) | Err(_) => Err(Refused::Invalid),
        }
    }

    fn drops_before_us(&mut self) -> Result<u64, PortError> {
        if let Some((netns, identity)) = &self.pinned
            && netns.is_another(*identity)
            // Elsewhere it lives as long as the namespace that it is in.
            && Spot::of(self.fd.as_fd()).is_ok_and(|spot| spot.identity == *identity)
        {
            return Err(self.gone(&format!("its namespace {netns} was deleted")));
        }
        match self.kernel_drops() {
            Ok(drops) => self.drops.last = self.drops.last.max(drops),
            Err(_) if ioctl::name(self.fd.as_fd()).is_err() => {
                return Err(self.gone("the device, or the namespace it was in, was deleted"));
            }
            // It is being moved or renamed at this moment: the next call will find it.
            Err(_) => {}
        }
        Ok(self.drops.last - self.drops.at_open + self.cut.load(Ordering::Relaxed))
    }

    fn known_as(&self) -> Option<&str> {
        Some(&self.known_as)
    }

    fn whereabouts(&self) -> Option<&Whereabouts> {
        self.whereabouts.as_ref()
    }

    fn second(&self) -> Option<Box<dyn Port + Send>> {
        Some(Box::new(self.twin()?))
    }
}
