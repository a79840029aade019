//! Load reports: `levada key` makes the key, `levada report` sends on a server, and a daemon
//! receives them here (a controller of Open vSwitch in `openflow/reports.rs`). What is in one, and
//! whether it is believed, is `control::report`.

mod court;
mod sender;

pub use court::{Court, PAUSE, TRIES, TRY_AGAIN, cannot_arrive};

pub use sender::{Key, Reporter, make_key, send};

use crate::api::services::LoadRequest;
use crate::handler::Handler;
use crate::system::log::{Level, Log};
use control::config::Config;
use control::report::{SIZE, Verdict, keys};
use rustix::io::Errno;
use rustix::net::RecvFlags;
use std::net::{SocketAddr, UdpSocket};
use std::sync::Arc;
use std::time::{Duration, Instant};

/// How long the thread waits for a report before it looks whether the configuration is another.
const LOOK: Duration = Duration::from_millis(500);

/// Reports that are taken before it looks.
const AT_ONCE: usize = 256;

/// Takes reports for as long as the daemon runs.
pub fn receive(handler: &Handler, log: &Log) {
    let mut receiver =
        Receiver { handler, log, court: Court::new(), config: None, again: None, socket: None, failures: 0 };
    loop {
        receiver.turn();
    }
}

struct Receiver<'a> {
    handler: &'a Handler,
    log: &'a Log,
    court: Court,
    /// What the keys and the address are of.
    config: Option<Arc<Config>>,
    /// When the keys are read again, and it is tried again to listen.
    again: Option<Instant>,
    socket: Option<(SocketAddr, UdpSocket)>,
    failures: u32,
}

impl Receiver<'_> {
    fn turn(&mut self) {
        let config = self.handler.wait_for_config(self.config.as_ref(), self.patience());
        let is_other = self.config.as_ref().is_none_or(|known| !Arc::ptr_eq(known, &config));
        if is_other || self.again.is_some_and(|again| again <= Instant::now()) {
            self.renew(&config);
            self.config = Some(config);
        }
        // Those that are there by then do not wait until it is known whether the configuration is
        // another.
        for at in 0..AT_ONCE {
            let Some((_, socket)) = &self.socket else { return };
            // One byte more, so that longer datagrams are seen to be longer.
            let mut datagram = [0; SIZE + 1];
            let flags = if at == 0 { RecvFlags::empty() } else { RecvFlags::DONTWAIT };
            match rustix::net::recv(socket, &mut datagram[..], flags) {
                Ok((length, _)) => self.take(&datagram[..length]),
                Err(Errno::AGAIN | Errno::INTR) => return,
                // The address may have gone.
                Err(_) => return std::thread::sleep(PAUSE),
            }
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
            self.court.read_keys(Vec::new(), self.log);
            return;
        };
        self.court.read_keys(keys(config), self.log);
        self.again = self.court.read_due();
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
                    self.log.line(Level::Warning, &cannot_arrive(address, &error, "[daemon]"));
                }
            }
        }
    }

    fn take(&mut self, datagram: &[u8]) {
        let verdict = match self.court.judge(datagram) {
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
