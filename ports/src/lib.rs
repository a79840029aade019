//! Port drivers: where frames enter the switch and leave it.
//!
//! A [`Port`] reads frames into the switch's [`Pool`] and writes them out of it, without ever
//! blocking. It knows nothing of tenants, queues or rates. What a device can be handed is in its
//! [`Features`]; what it cannot, the switch does in software before. Nearly all unsafe code of the
//! project is in this crate.
//!
//! | driver | locator | what it is |
//! |---|---|---|
//! | [`tap::Tap`] | `tap://NAME` | a kernel TAP device with segmentation and checksum offload, for containers |
//! | [`packet::Packet`] | `packet://NAME` | an interface that exists (a NIC, a veth), by AF_PACKET |
//! | [`packet::Host`] | `host://NAME` | the host's own traffic over such an interface |
//! | [`veth`] | `veth://NAME` | a veth pair that is made: one end for a container, the other by AF_PACKET |
//! | [`vde::VdePort`] | `vde://DIR` | a plug of a VDE switch's control directory, for QEMU and all that knows libvdeplug |
//! | [`vhost::VhostPort`] | `vhost-user://SOCKET` | the rings of a virtual machine, in memory that it shares |
//! | [`pcap::PcapInput`], [`pcap::PcapOutput`] | `pcap://FILE` | a capture file, to replay or to write |
//! | [`pair::pair`] | - | two ports joined in memory, for tests |
//!
//! `Port` is a trait object rather than an enum: its calls are one a burst for reading and one a
//! frame for writing, where an indirect call (about 1 ns) is lost beside a system call (175 ns and
//! up); and a driver, also one of a test, is added without touching what calls it.

use std::fmt;
use std::io;
use std::os::fd::BorrowedFd;

use datapath::frame::{Frame, Pool};
use datapath::intake::thin::Thinned;
use datapath::offload::OffloadSupport;
use datapath::verdict::Reason;
use datapath::wire::Mac;

pub mod carriers;
mod ethtool;
pub mod group;
pub mod neighbours;
pub mod netns;
pub mod packet;
pub mod pair;
pub mod pcap;
mod rtnl;
pub mod seccomp;
#[cfg(test)]
mod skipped;
mod survey;
pub mod tap;
pub mod vde;
pub mod veth;
pub mod vhost;
pub mod vnet;

pub use survey::{Inherited, Survey};

/// What a port can do.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Features {
    /// What it can be handed; the rest must be done before [`Port::tx`].
    pub offload: OffloadSupport,
    /// Not reading it makes its senders wait. Where this is false, the device drops instead.
    pub can_pause: bool,
    /// [`Port::drops_before_us`] tells what the device dropped.
    pub reports_drops: bool,
    /// The longest frame it takes, in bytes; one that is still to be segmented counts whole.
    pub max_frame: usize,
}

/// What waits in a port's ring.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Waiting {
    /// Memory of the kernel that it takes, in bytes.
    pub bytes: u64,
    /// At so many bytes the ring is full.
    pub room: u64,
}

/// What an interface that is somebody else's says of itself.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct InterfaceStatus {
    /// Its own address.
    pub mac: Option<Mac>,
    /// What it carries, in bit/s, where it knows. Virtual ones may say anything.
    pub bits_per_second: Option<u64>,
    /// Whether it has a carrier and is up, where it has such a thing.
    pub has_carrier: Option<bool>,
}

/// Bytes after which a driver may end a burst before it has as many frames as asked for: what is
/// read is still in the second-level cache (512 KiB and up on servers) when it is written. With
/// bursts of 64 frames of 64 KiB a plain copy loop took a fifth more time for each byte than with
/// ones of 1 to 8.
pub const BURST_BYTES: usize = 256 << 10;

/// A port that another thread may have opened.
pub type AnyPort = Box<dyn Port + Send>;

/// Where frames enter and leave. All methods but [`Port::drops_before_us`] return at once.
///
/// Call order: [`Port::fd`] is waited on; while it is readable (or in error), [`Port::rx`];
/// [`Port::write`] or [`Port::tx`] at any time, and [`Port::flush`] after each burst of them;
/// [`Port::drops_before_us`] about once a second, on the handle that [`Port::second`] gives, from a
/// thread that may wait.
pub trait Port {
    /// What this port can do. Of a device that is somebody else's, as of the last
    /// [`Port::drops_before_us`]; else it does not change.
    fn features(&self) -> Features;

    /// What its owner may change besides, as of the last [`Port::drops_before_us`]; nothing where
    /// Levada is the owner.
    fn line(&self) -> InterfaceStatus {
        InterfaceStatus::default()
    }

    /// The descriptor that becomes readable when frames wait, and shows an error when the device is
    /// gone. `None` where there is nothing to wait for: such a port is asked at every turn of the
    /// loop.
    fn fd(&self) -> Option<BorrowedFd<'_>>;

    /// Appends up to `burst` frames to `out` and returns how many. `Meta::offload` says what is
    /// still to be done to each, with offsets from its first byte. Fewer than `burst` and less than
    /// [`BURST_BYTES`] in all mean that none waits, or that the pool has no buffer, or none of the
    /// largest; from [`BURST_BYTES`] on, the next call may find more. What is lost for want of a
    /// large buffer counts against `burst`, too; what else is no frame for the switch is one
    /// without bytes.
    ///
    /// # Errors
    /// [`PortError`], only where no frame was read: an error that lasts and is met within a burst
    /// is returned by the next call. After [`PortError::Io`] reading may go on; after
    /// [`PortError::Gone`] the port is to be dropped.
    fn rx(&mut self, pool: &mut Pool, burst: usize, out: &mut Vec<Frame>) -> Result<usize, PortError>;

    /// Hands what a frame holds to the device. The frame is as it was before in any case.
    ///
    /// # Errors
    /// [`Refused`]: it was not taken. [`Refused::reason`] is the counter it belongs to.
    fn write(&mut self, pool: &mut Pool, frame: &Frame) -> Result<(), Refused>;

    /// The same, and frees the frame in any case.
    ///
    /// # Errors
    /// As of [`Port::write`].
    fn tx(&mut self, pool: &mut Pool, frame: Frame) -> Result<(), Refused> {
        let result = self.write(pool, &frame);
        pool.free(frame);
        result
    }

    /// Whether [`Port::write`] makes a system call. Where it only copies, its caller may take the
    /// time of some frames together.
    fn writes_by_call(&self) -> bool {
        true
    }

    /// Publishes what [`Port::write`] has taken since the last call, where it left that to be done
    /// for a burst at once. Called after each visit that handed frames to the port. Returns whether
    /// there was something to do: then the time counts as writing.
    ///
    /// # Errors
    /// [`Unsent`]: frames that `write` took and the device did not.
    fn flush(&mut self, pool: &mut Pool) -> Result<bool, Unsent> {
        let _ = pool;
        Ok(false)
    }

    /// Frames lost since the port was opened before the switch could read them: its ring was full,
    /// or there was no buffer to read into. Takes some tens of microseconds; and where the kernel's
    /// lock on network devices is taken, because a namespace is being deleted say, as long as that
    /// takes.
    ///
    /// # Errors
    /// [`PortError::Gone`]: an idle port shows its end here.
    fn drops_before_us(&mut self) -> Result<u64, PortError>;

    /// What waits to be read. `None` where that cannot be told at once.
    fn waiting(&self) -> Option<Waiting> {
        None
    }

    /// Of what arrives for these destinations, drops all but a part before it takes a place in the
    /// ring, until the next call. They are [`datapath::intake::thin::MOST`] at most; an empty list
    /// ends it. False: it is not done, and all is read; or what was read before, where the kernel
    /// refuses. It takes some tens of microseconds.
    fn thin(&mut self, thinned: &[Thinned]) -> bool {
        thinned.is_empty()
    }

    /// What has become worse than it could be since the last call, for the log. To be asked after
    /// [`Port::drops_before_us`], on the same handle.
    fn complaint(&mut self) -> Option<String> {
        None
    }

    /// What a process that goes on after this one needs of it ([`Survey`]); nothing where it opens
    /// the device anew.
    fn lent(&self) -> Vec<BorrowedFd<'_>> {
        self.fd().into_iter().collect()
    }

    /// What that process knows it by where its descriptor does not say enough: somebody may have
    /// moved and renamed the device.
    fn known_as(&self) -> Option<&str> {
        None
    }

    /// Where the device is and what it is like, as of the last [`Port::drops_before_us`]; nothing
    /// where it is somebody else's, or is none.
    fn whereabouts(&self) -> Option<&tap::Whereabouts> {
        None
    }

    /// Whether it may be kept while no process serves it. Not an interface that others use as well:
    /// they would be cut off.
    fn may_wait(&self) -> bool {
        true
    }

    /// A second handle on the same device, for another thread to ask for drops. `None` where there
    /// is none to be had: such a port answers at once. The device stays until both are dropped.
    fn second(&self) -> Option<Box<dyn Port + Send>> {
        None
    }
}

/// Why a port cannot be read any more.
#[derive(Debug)]
pub enum PortError {
    /// The device was deleted, or the namespace that it was in. Opening it anew may work.
    Gone(String),
    /// Reading failed.
    Io(io::Error),
}

impl fmt::Display for PortError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            PortError::Gone(what) => write!(f, "{what}"),
            PortError::Io(error) => write!(f, "reading failed: {error}"),
        }
    }
}

impl std::error::Error for PortError {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match self {
            PortError::Gone(_) => None,
            PortError::Io(error) => Some(error),
        }
    }
}

/// Why a port did not take a frame.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Refused {
    /// It has no room now; later frames may pass.
    Full,
    /// The device is set down by its owner; later frames may pass.
    Down,
    /// The device says that the frame, or its offload metadata, is wrong.
    Invalid,
    /// The device is gone: [`Port::rx`] says how.
    Gone,
}

/// Frames that [`Port::tx`] took and [`Port::flush`] could not hand over. They are freed.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Unsent {
    /// How many.
    pub frames: u64,
    /// Why.
    pub refused: Refused,
}

impl Refused {
    /// The counter that the frame belongs to.
    #[must_use]
    pub const fn reason(self) -> Reason {
        match self {
            Refused::Full | Refused::Down | Refused::Gone => Reason::PortDown,
            Refused::Invalid => Reason::BadOffload,
        }
    }
}
