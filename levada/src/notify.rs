//! What a service manager is told, and what it keeps for the next process: sd_notify(3) and
//! sd_listen_fds(3), spoken by hand. Without `NOTIFY_SOCKET` in the environment there is nobody to
//! tell, and all of this does nothing.
//!
//! Descriptors of devices lie in the manager's store (`FDSTORE=1`) for as long as the devices are
//! served. So a device outlives its process, killed or stopped, and what endpoints send meanwhile
//! waits in its ring; the next process finds the descriptors in `LISTEN_FDS` and goes on with the
//! same devices. What a device is known by is a part of its descriptor's name there, since its own
//! name and place may be others by now. The manager closes its copies at a time of its own: a
//! device that is to end is deleted, not closed (`Recipe::remove`).
//!
//! Interfaces that are taken are not among them: if the next process did not come, the host would
//! be cut off for as long as the manager keeps them. VDE clients are unplugged.

use crate::system::descriptors;
use crate::worker::{Request, Waker};
use ports::{AnyPort, Inherited};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use std::collections::BTreeSet;
use std::env;
use std::fmt::Write as _;
use std::io;
use std::os::fd::{AsFd as _, BorrowedFd};
use std::os::linux::net::SocketAddrExt as _;
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::net::{SocketAddr, UnixDatagram};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{SyncSender, sync_channel};
use std::time::Duration;

/// What descriptors of devices are called in the manager's store; behind it, what the device is
/// known by.
const STORED: &str = "levada-device";
/// The longest such name that a manager takes, in bytes (systemd's FDNAME_MAX).
const LONGEST_NAME: usize = 255;
/// How long the manager may take to look at what it was sent before the process ends.
const BARRIER: Timespec = Timespec { tv_sec: 2, tv_nsec: 0 };

/// How long a manager may take to make room for a message about its store.
const ROOM: Timespec = Timespec { tv_sec: 2, tv_nsec: 0 };

/// The service manager's socket, where there is one.
#[derive(Clone, Default, Debug)]
pub struct Notifier(Option<Arc<Manager>>);

#[derive(Debug)]
struct Manager {
    socket: UnixDatagram,
    /// It did not take a message about its store in time: nobody waits for it again until it does.
    hangs: AtomicBool,
}

impl Notifier {
    /// The manager that the environment names.
    #[must_use]
    pub fn from_environment() -> Notifier {
        Notifier(env::var_os("NOTIFY_SOCKET").and_then(|path| Some(Arc::new(connect(path.as_bytes()).ok()?))))
    }

    /// A manager that does not listen gets nothing; the daemon works all the same.
    fn tell(&self, text: &str, descriptors: &[BorrowedFd<'_>]) -> io::Result<()> {
        let Some(manager) = &self.0 else { return Ok(()) };
        descriptors::send(&manager.socket, text.as_bytes(), descriptors)
    }

    /// The same, of its store. False: it has not taken the message.
    fn tell_of_store(&self, text: &str, descriptors: &[BorrowedFd<'_>]) -> bool {
        let Some(manager) = &self.0 else { return false };
        let patience = if manager.hangs.load(Ordering::Relaxed) { Timespec::default() } else { ROOM };
        let mut room = [PollFd::new(&manager.socket, PollFlags::OUT)];
        let is_taken =
            poll(&mut room, Some(&patience)).is_ok_and(|ready| ready > 0) && self.tell(text, descriptors).is_ok();
        manager.hangs.store(!is_taken, Ordering::Relaxed);
        is_taken
    }

    /// The daemon is up.
    pub fn ready(&self, status: &str) {
        // It is waited for.
        let is_late = |error: io::Error| error.kind() == io::ErrorKind::WouldBlock;
        while self.tell(&format!("READY=1\nSTATUS={status}"), &[]).is_err_and(is_late) {}
    }

    /// The daemon reads its file again; [`Notifier::ready`] ends that, whatever came of it
    /// (systemd.service(5), notify-reload).
    pub fn reloading(&self) {
        let now = rustix::time::clock_gettime(rustix::time::ClockId::Monotonic);
        let micros = now.tv_sec as u64 * 1_000_000 + now.tv_nsec as u64 / 1000;
        let _ = self.tell(&format!("RELOADING=1\nMONOTONIC_USEC={micros}"), &[]);
    }

    /// The daemon ends.
    pub fn stopping(&self) {
        let _ = self.tell("STOPPING=1\nSTATUS=stopping", &[]);
    }

    /// Whether there is a manager.
    #[must_use]
    pub fn is_there(&self) -> bool {
        self.0.is_some()
    }

    /// Leaves devices to the next process. What is in the store already stays as it is.
    pub fn store(&self, devices: &[Inherited]) {
        if devices.iter().all(|device| self.put(&stored_as(device.known_as.as_deref()), device)) {
            self.wait();
        }
    }

    /// Has the store hold these devices while they are served, and no more of what was in it under
    /// `names`. Where it is not known which they are, it stays as it is, and is to be told again:
    /// what were taken out now would be missing after a kill.
    #[must_use]
    pub fn begin(&self, names: &[String], devices: Option<Vec<Inherited>>) -> bool {
        let Some(devices) = devices else { return false };
        let kept: BTreeSet<String> = devices.iter().filter_map(named).collect();
        let ours = names.iter().filter(|name| known_as(name).is_some() && !kept.contains(*name));
        let gone = ours.map(String::as_str).chain([STORED]).collect::<BTreeSet<_>>();
        if gone.into_iter().all(|name| self.remove(name)) {
            self.keep(&devices);
        }
        true
    }

    /// Has the store hold these devices, too, while they are served. One whose name is too long for
    /// it could not be taken out by itself, and is left out.
    pub fn keep(&self, devices: &[Inherited]) {
        let mut named = devices.iter().filter_map(|device| Some((named(device)?, device)));
        named.all(|(name, device)| self.put(&name, device));
    }

    /// The same of an open port, where it may wait for another process.
    pub fn keep_port(&self, port: &AnyPort) {
        if self.is_there() && port.may_wait() {
            self.keep(&Inherited::all_of(&**port));
        }
    }

    /// Takes out of the store what is known by these.
    pub fn forget(&self, known_as: impl IntoIterator<Item = String>) {
        known_as.into_iter().all(|known_as| self.remove(&stored_as(Some(&known_as))));
    }

    fn put(&self, name: &str, device: &Inherited) -> bool {
        self.tell_of_store(&format!("FDSTORE=1\nFDNAME={name}"), &[device.as_fd()])
    }

    fn remove(&self, name: &str) -> bool {
        self.tell_of_store(&format!("FDSTOREREMOVE=1\nFDNAME={name}"), &[])
    }

    /// Waits until the manager has read all: of a process that has ended it would take nothing
    /// (sd_notify_barrier(3)).
    fn wait(&self) {
        let Ok((read, write)) = rustix::pipe::pipe_with(rustix::pipe::PipeFlags::CLOEXEC) else { return };
        if self.tell("BARRIER=1", &[write.as_fd()]).is_err() {
            return;
        }
        drop(write);
        let _ = poll(&mut [PollFd::new(&read, PollFlags::empty())], Some(&BARRIER));
    }

    /// What tells the manager that the worker answers, where it wants to know: twice in
    /// `WATCHDOG_USEC`. A worker that does not answer is not told of, and the manager restarts the
    /// daemon. It takes a thread of its own.
    #[must_use]
    pub fn watch(&self, inbox: SyncSender<Request>, waker: Waker) -> Option<Watch> {
        let number = |name| env::var(name).ok().and_then(|text| text.parse::<u64>().ok());
        let ours = number("WATCHDOG_PID").is_none_or(|pid| pid == u64::from(std::process::id()));
        let every = number("WATCHDOG_USEC").filter(|_| ours && self.is_there())?;
        Some(Watch { notifier: self.clone(), every: Duration::from_micros(every / 2), inbox, waker })
    }
}

/// See [`Notifier::watch`].
pub struct Watch {
    notifier: Notifier,
    every: Duration,
    inbox: SyncSender<Request>,
    waker: Waker,
}

impl Watch {
    /// Until the worker ends.
    pub fn run(self) {
        while answers(&self.inbox, &self.waker, self.every) {
            let _ = self.notifier.tell("WATCHDOG=1", &[]);
            std::thread::sleep(self.every);
        }
    }
}

/// Waits for the worker's answer, however long it takes: the manager's patience is what counts.
/// False: the worker has ended.
fn answers(inbox: &SyncSender<Request>, waker: &Waker, every: Duration) -> bool {
    let (reply, answer) = sync_channel(1);
    if inbox.send(Request::Ping { reply }).is_err() {
        return false;
    }
    waker.ring();
    loop {
        match answer.recv_timeout(every) {
            Ok(()) => return true,
            Err(std::sync::mpsc::RecvTimeoutError::Timeout) => {}
            Err(std::sync::mpsc::RecvTimeoutError::Disconnected) => return false,
        }
    }
}

/// `/path`, or `@name` for an abstract one.
fn connect(path: &[u8]) -> io::Result<Manager> {
    let address = match path.split_first() {
        Some((b'@', name)) => SocketAddr::from_abstract_name(name)?,
        _ => SocketAddr::from_pathname(std::ffi::OsStr::from_bytes(path))?,
    };
    let socket = UnixDatagram::unbound()?;
    socket.connect_addr(&address)?;
    // Another thread may take the room that was seen.
    socket.set_write_timeout(Some(Duration::from_secs(2)))?;
    Ok(Manager { socket, hangs: AtomicBool::new(false) })
}

/// What a device is called in the store, where that is a name of its own.
fn named(device: &Inherited) -> Option<String> {
    Some(stored_as(device.known_as.as_deref())).filter(|name| name != STORED)
}

/// What the descriptor of a device is called in the store: a name has no colons, and only what
/// ASCII can print.
fn stored_as(known_as: Option<&str>) -> String {
    let Some(known_as) = known_as else { return STORED.to_owned() };
    let mut name = format!("{STORED}=");
    for byte in known_as.bytes() {
        if byte.is_ascii_graphic() && !matches!(byte, b':' | b'%') {
            name.push(char::from(byte));
        } else {
            let _ = write!(name, "%{byte:02x}");
        }
    }
    if name.len() > LONGEST_NAME { STORED.to_owned() } else { name }
}

/// What a device is known by whose descriptor has this name in the store; `None` where it says
/// nothing.
pub fn known_as(name: &str) -> Option<String> {
    let mut bytes = Vec::new();
    let mut rest = name.strip_prefix(STORED)?.strip_prefix('=')?.bytes();
    while let Some(byte) = rest.next() {
        let mut digit = || char::from(rest.next()?).to_digit(16);
        bytes.push(if byte == b'%' { (digit()? * 16 + digit()?) as u8 } else { byte });
    }
    String::from_utf8(bytes).ok()
}

/// How many descriptors the manager left to this process, from the third on, and their names, as
/// far as it says them.
#[must_use]
pub fn inherited() -> (u32, Vec<String>) {
    let number = |name| env::var(name).ok().and_then(|text| text.parse::<u32>().ok());
    let count = number("LISTEN_FDS").filter(|_| number("LISTEN_PID") == Some(std::process::id())).unwrap_or(0);
    let names = env::var("LISTEN_FDNAMES").unwrap_or_default();
    (count, names.split(':').filter(|_| count > 0).map(str::to_owned).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_stored_stays_until_it_is_known_what_is_served() {
        let path = env::temp_dir().join(format!("levada-notify-{}", std::process::id()));
        let manager = UnixDatagram::bind(&path).unwrap();
        manager.set_nonblocking(true).unwrap();
        let notifier = Notifier(Some(Arc::new(connect(path.as_os_str().as_bytes()).unwrap())));
        std::fs::remove_file(&path).unwrap();
        let said = || {
            let mut bytes = [0; 256];
            let read = manager.recv(&mut bytes).ok()?;
            Some(String::from_utf8_lossy(&bytes[..read]).into_owned())
        };
        let stored = [stored_as(Some("ns/red1")), "another's".to_owned()];
        assert!(!notifier.begin(&stored, None));
        assert_eq!(said(), None);
        assert!(notifier.begin(&stored, Some(Vec::new())));
        for name in [STORED, &stored[0]] {
            assert_eq!(said().unwrap(), format!("FDSTOREREMOVE=1\nFDNAME={name}"));
        }
        assert_eq!(said(), None);
    }

    #[test]
    fn what_a_device_is_known_by_is_read_from_the_store_as_it_was_written() {
        for text in ["red1", "ns/red1", "/proc/1/ns/net/red1", "a b:c%d/\u{fc}0", ""] {
            let name = stored_as(Some(text));
            assert!(name.bytes().all(|byte| byte.is_ascii_graphic() && byte != b':'), "{name}");
            assert_eq!(known_as(&name).as_deref(), Some(text));
        }
        assert_eq!(stored_as(Some(&"x".repeat(300))), STORED);
        for name in [
            STORED,
            "",
            "x",
            "levada-devices",
            "levada-device=%",
            "levada-device=%f",
            "levada-device=%zz",
            "levada-device=%ff",
        ] {
            assert_eq!(known_as(name), None, "{name}");
        }
    }
}
