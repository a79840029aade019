//! A wire between two hosts that loses packets, and remembers them.

use std::collections::HashMap;
use std::net::{SocketAddr, UdpSocket};
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::time::Duration;

/// Forwards what comes to `address` to one host, and what that answers back.
pub struct Wire {
    address: SocketAddr,
    shared: Arc<Shared>,
    thread: Option<JoinHandle<()>>,
}

#[derive(Default)]
struct Shared {
    /// Of a thousand packets, so many are lost.
    loss: AtomicU32,
    passed: AtomicU64,
    over: AtomicBool,
    /// What went to the host.
    captured: Mutex<Vec<Vec<u8>>>,
}

impl Wire {
    /// A wire to `host`.
    pub fn to(host: SocketAddr) -> Wire {
        let front = UdpSocket::bind(super::address()).unwrap();
        let (address, shared) = (front.local_addr().unwrap(), Arc::new(Shared::default()));
        let thread = std::thread::spawn({
            let shared = Arc::clone(&shared);
            move || carry(&front, host, &shared)
        });
        Wire { address, shared, thread: Some(thread) }
    }

    /// Where to send.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Loses so many of a thousand packets from now on.
    pub fn lose(&self, permille: u32) {
        self.shared.loss.store(permille, Ordering::Relaxed);
    }

    /// Packets that came, lost ones included.
    pub fn passed(&self) -> u64 {
        self.shared.passed.load(Ordering::Relaxed)
    }

    /// What went to the host.
    pub fn captured(&self) -> Vec<Vec<u8>> {
        self.shared.captured.lock().unwrap().clone()
    }
}

impl Drop for Wire {
    fn drop(&mut self) {
        self.shared.over.store(true, Ordering::Relaxed);
        let _ = self.thread.take().unwrap().join();
    }
}

fn carry(front: &UdpSocket, host: SocketAddr, shared: &Shared) {
    let mut random = 0x2545_f491_4f6c_dd1d_u64;
    let mut lost = || {
        // xorshift64 (Marsaglia 2003)
        random ^= random << 13;
        random ^= random >> 7;
        random ^= random << 17;
        random % 1000 < u64::from(shared.loss.load(Ordering::Relaxed))
    };
    let mut backs: HashMap<SocketAddr, UdpSocket> = HashMap::new();
    let mut buffer = [0; 2048];
    front.set_read_timeout(Some(Duration::from_millis(1))).unwrap();
    while !shared.over.load(Ordering::Relaxed) {
        if let Ok((length, from)) = front.recv_from(&mut buffer) {
            let back = backs.entry(from).or_insert_with(|| {
                let back = UdpSocket::bind((super::address().ip(), 0)).unwrap();
                back.connect(host).unwrap();
                back.set_nonblocking(true).unwrap();
                back
            });
            shared.passed.fetch_add(1, Ordering::Relaxed);
            if !lost() {
                shared.captured.lock().unwrap().push(buffer[..length].to_vec());
                let _ = back.send(&buffer[..length]);
            }
        }
        for (client, back) in &backs {
            // A refusal by the kernel (the host is not there) is read here as an error, once.
            while let Ok(length) = back.recv(&mut buffer) {
                shared.passed.fetch_add(1, Ordering::Relaxed);
                if !lost() {
                    let _ = front.send_to(&buffer[..length], client);
                }
            }
        }
    }
}
