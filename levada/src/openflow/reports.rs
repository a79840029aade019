//! Servers' load reports, as a daemon takes them (`crate::reports`).

use super::{House, report};
use crate::reports::{Court, PAUSE, TRIES, TRY_AGAIN, cannot_arrive};
use crate::system::log::Level;
use ::control::report::{SIZE, Verdict, keys_of_openflow};
use std::future::pending;
use std::io;
use std::net::SocketAddr;
use std::rc::Rc;
use tokio::net::UdpSocket;
use tokio::time::{MissedTickBehavior, interval, sleep};

/// Takes reports for as long as the controller runs.
pub(super) async fn receive(house: Rc<House>) {
    let mut receiver = Receiver { house, court: Court::new(), socket: None, failures: 0 };
    // Also how often it is looked whether the configuration is another.
    let mut ticks = interval(TRY_AGAIN);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    // One byte more, so that longer datagrams are seen to be longer.
    let mut datagram = [0; SIZE + 1];
    loop {
        tokio::select! {
            length = receiver.next(&mut datagram) => match length {
                Ok(length) => receiver.take(&datagram[..length]).await,
                // The address may have gone.
                Err(_) => sleep(PAUSE).await,
            },
            _ = ticks.tick() => receiver.renew().await,
        }
    }
}

struct Receiver {
    house: Rc<House>,
    court: Court,
    socket: Option<(SocketAddr, UdpSocket)>,
    failures: u32,
}

impl Receiver {
    async fn next(&self, datagram: &mut [u8]) -> io::Result<usize> {
        match &self.socket {
            Some((_, socket)) => socket.recv(datagram).await,
            None => pending().await,
        }
    }

    /// Listens where the configuration says, to whom it says.
    async fn renew(&mut self) {
        let (address, files) = {
            let config = self.house.config.borrow();
            (config.reports, keys_of_openflow(&config))
        };
        let Some(address) = address else {
            (self.socket, self.failures) = (None, 0);
            return self.court.read_keys(Vec::new(), &self.house.log);
        };
        self.court.read_keys(files, &self.house.log);
        if self.socket.as_ref().is_none_or(|(bound, _)| *bound != address) {
            // The old one first: they may be in each other's way.
            self.socket = None;
            match UdpSocket::bind(address).await {
                Ok(socket) => (self.socket, self.failures) = (Some((address, socket)), 0),
                Err(error) => {
                    self.failures = self.failures.saturating_add(1);
                    if self.failures == TRIES {
                        self.house.log.line(Level::Warning, &cannot_arrive(address, &error, "[openflow]"));
                    }
                }
            }
        }
    }

    async fn take(&mut self, datagram: &[u8]) {
        let verdict = match self.court.judge(datagram) {
            Ok((path, load_milli)) => {
                // Gone with a change that is not seen yet.
                let _ = report::load(&self.house, path, load_milli.into());
                Verdict::Taken
            }
            Err(verdict) => verdict,
        };
        self.house.verdicts.count(verdict);
        if verdict == Verdict::TooMany {
            sleep(PAUSE).await;
        }
    }
}
