//! Cables whose ends say what a test has them say of their speed.

use crate::testbed::Bed;
use datapath::frame::{Pool, PoolLimits};
use ports::Port as _;
use ports::tap::{Tag, Tap, TapOptions};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;

/// Two cables between the hosts of two beds, each of two taps and of what this carries between
/// them: of a tap, unlike a veth, it can be set what it says that it has negotiated.
pub struct Taps {
    stop: Arc<AtomicBool>,
    carrier: Option<JoinHandle<()>>,
}

impl Taps {
    pub fn new(beds: &[Bed; 2]) -> Taps {
        let open = |bed: &Bed, name: &str| {
            let options = TapOptions {
                name: name.into(),
                netns: Some(bed.space("host")),
                mac: None,
                // What two tags need beside a frame of 1500 bytes.
                mtu: Some(1504),
                longest_offload: None,
                addresses: Vec::new(),
                persistent: false,
                txqueuelen: None,
                without_ipv6: true,
                tag: Tag { instance: "cables".into(), endpoint: name.into() },
            };
            Tap::open(&options).unwrap()
        };
        let mut cables = ["up0", "up1"].map(|name| [&beds[0], &beds[1]].map(|bed| open(bed, name)));
        for bed in beds {
            for cable in ["up0", "up1"] {
                // Whoever reads from a packet socket takes checksums as they are.
                bed.tool("ethtool", "host", &format!("-K {cable} tx off")).unwrap();
                set_link(bed, cable, "1000", "full");
            }
        }
        let stop = Arc::new(AtomicBool::new(false));
        let wanted = Arc::clone(&stop);
        let carrier = std::thread::spawn(move || {
            let mut pool = Pool::new(PoolLimits::default());
            let mut carry = |from: &mut Tap, to: &mut Tap| {
                let mut read = Vec::new();
                from.rx(&mut pool, 32, &mut read).unwrap();
                for frame in read {
                    let _ = to.tx(&mut pool, frame);
                }
            };
            while !wanted.load(Ordering::Relaxed) {
                for [one, two] in &mut cables {
                    carry(one, two);
                    carry(two, one);
                }
                std::thread::sleep(Duration::from_millis(1));
            }
        });
        Taps { stop, carrier: Some(carrier) }
    }
}

impl Drop for Taps {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        let _ = self.carrier.take().map(JoinHandle::join);
    }
}

/// Has an interface say that it has negotiated this.
pub fn set_link(bed: &Bed, name: &str, mbit: &str, duplex: &str) {
    bed.tool("ethtool", "host", &format!("-s {name} speed {mbit} duplex {duplex}")).unwrap();
}
