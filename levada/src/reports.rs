//! Load reports: `levada key` makes the key, `levada report` sends on a server, and a daemon
//! receives them here. What is in one, and whether it is believed, is `control::report`.

mod sender;

pub use sender::{Key, Reporter, make_key, send};

use crate::handler::Handler;
use crate::log::{Level, Log};
use crate::secrets::report_keys;
use crate::services::LoadRequest;
use control::config::Config;
use control::report::{Judge, Now, SIZE, Verdict};
use ring::hmac;
use std::io::ErrorKind;
use std::net::{SocketAddr, UdpSocket};
use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

/// How long the thread waits for a report before it looks whether the configuration is another.
const LOOK: Duration = Duration::from_millis(500);
/// How often keys are read again, so that a new one in the same file is used.
const READ_AGAIN: Duration = Duration::from_secs(10);
/// After how long it is tried again to listen. The process that is taken over from still does.
const TRY_AGAIN: Duration = Duration::from_secs(1);
/// Tries that may fail before it is said.
const TRIES: u32 = 3;
/// While more come than are looked at, the kernel keeps them, and drops those beyond its bound.
const PAUSE: Duration = Duration::from_millis(1);

/// The time of day, in nanoseconds since 1970.
fn wall_ns() -> u64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    u64::try_from(since.as_nanos()).unwrap_or(u64::MAX)
}

/// Takes reports for as long as the daemon runs.
pub fn receive(handler: &Handler, log: &Log) {
    let mut receiver = Receiver {
        handler,
        log,
        started: Instant::now(),
        judge: Judge::default(),
        config: None,
        again: None,
        wrong: Vec::new(),
        socket: None,
        failures: 0,
    };
    loop {
        receiver.turn();
    }
}

struct Receiver<'a> {
    handler: &'a Handler,
    log: &'a Log,
    started: Instant,
    judge: Judge<hmac::Key>,
    /// What the keys and the address are of.
    config: Option<Arc<Config>>,
    /// When the keys are read again, and it is tried again to listen.
    again: Option<Instant>,
    /// What was wrong with keys then.
    wrong: Vec<String>,
    socket: Option<(SocketAddr, UdpSocket)>,
    failures: u32,
}

impl Receiver<'_> {
    fn now(&self) -> Now {
        let monotonic_ns = u64::try_from(self.started.elapsed().as_nanos()).unwrap_or(u64::MAX);
        Now { wall_ns: wall_ns(), monotonic_ns }
    }

    fn turn(&mut self) {
        let config = self.handler.wait_for_config(self.config.as_ref(), self.patience());
        let is_other = self.config.as_ref().is_none_or(|known| !Arc::ptr_eq(known, &config));
        if is_other || self.again.is_some_and(|again| again <= Instant::now()) {
            self.renew(&config);
            self.config = Some(config);
        }
        let Some((_, socket)) = &self.socket else { return };
        // One byte more, so that longer datagrams are seen to be longer.
        let mut datagram = [0; SIZE + 1];
        match socket.recv(&mut datagram) {
            Ok(length) => self.take(&datagram[..length]),
            Err(error) if matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut) => {}
            // The address may have gone.
            Err(_) => std::thread::sleep(PAUSE),
        }
    }

    /// How long to wait for another configuration: not at all where reports are waited for.
    fn patience(&self) -> Option<Duration> {
        let is_wanted = self.config.as_ref().is_none_or(|config| config.daemon.reports.is_some());
        match &self.socket {
            Some(_) => Some(Duration::ZERO),
            None if is_wanted => Some(TRY_AGAIN),
            None => None,
        }
    }

    /// Listens where the configuration says, to whom it says.
    fn renew(&mut self, config: &Config) {
        let Some(address) = config.daemon.reports else {
            (self.socket, self.again, self.failures) = (None, None, 0);
            self.judge.set_keys(self.now(), Vec::new());
            return;
        };
        let (keys, mut wrong) = report_keys(config);
        let alike = self.judge.set_keys(self.now(), keys);
        wrong.extend(alike.iter().map(|path| format!("backend \"{path}\" cannot report: give it another name")));
        for why in wrong.iter().filter(|why| !self.wrong.contains(why)) {
            self.log.line(Level::Warning, why);
        }
        (self.wrong, self.again) = (wrong, Some(Instant::now() + READ_AGAIN));
        if self.socket.as_ref().is_none_or(|(bound, _)| *bound != address) {
            self.listen(address);
        }
    }

    fn listen(&mut self, address: SocketAddr) {
        // The old one first: they may be in each other's way.
        self.socket = None;
        let bound = UdpSocket::bind(address).and_then(|socket| socket.set_read_timeout(Some(LOOK)).map(|()| socket));
        match bound {
            Ok(socket) => (self.socket, self.failures) = (Some((address, socket)), 0),
            Err(error) => {
                self.again = Some(Instant::now() + TRY_AGAIN);
                self.failures = self.failures.saturating_add(1);
                if self.failures == TRIES {
                    let text = format!("load reports cannot arrive at {address}: {error}; correct [daemon] reports");
                    self.log.line(Level::Warning, &text);
                }
            }
        }
    }

    fn take(&mut self, datagram: &[u8]) {
        let now = self.now();
        let verdict = self.judge.judge(now, datagram, |key, signed, mac| hmac::verify(key, signed, mac).is_ok());
        let verdict = match verdict {
            Ok((path, load_milli)) => {
                let request = LoadRequest { backend: path.to_owned(), load_milli: load_milli.into() };
                // Gone with a change that is not seen yet, or the worker has other things to do.
                let _ = self.handler.load(&request);
                Verdict::Taken
            }
            Err(verdict) => verdict,
        };
        self.handler.verdicts().count(verdict);
        if verdict == Verdict::TooMany {
            std::thread::sleep(PAUSE);
        }
    }
}
