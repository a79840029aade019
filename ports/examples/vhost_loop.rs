//! Copies frames between two machines' vhost-user ports, on one thread, and does nothing else: the
//! yardstick for what a switch between them costs.
//!
//!     vhost_loop SOCKET_A SOCKET_B
//!
//! The sockets are made, and a front end is waited for at each; when one of them closes, the loop
//! ends. Says `vhost_loop: ready` on standard error when the sockets are there.

use std::io::Write as _;
use std::os::unix::net::{UnixListener, UnixStream};
use std::process::ExitCode;

use datapath::frame::{Pool, PoolLimits};
use ports::Port as _;
use ports::vhost::{End, Incoming, Offer, Session, VhostPort};

const OFFER: Offer = Offer { pairs: 1, offload: true, must_be_sealed: false, mtu: 1500 };
/// Frames read before the other machine has its turn, and after how many turns messages are read.
const BURST: usize = 32;
const TURNS: u32 = 4096;

type Ended = Box<dyn std::error::Error>;

struct Machine {
    stream: UnixStream,
    incoming: Incoming,
    session: Session,
    port: Option<VhostPort>,
}

impl Machine {
    /// Reads what has come. False: the front end is gone.
    fn hear(&mut self) -> Result<bool, Ended> {
        loop {
            let (header, request, descriptors) = match self.incoming.next(&self.stream) {
                Ok(Some(message)) => message,
                Ok(None) => return Ok(true),
                Err(End::Closed) => return Ok(false),
                Err(end) => return Err(end.to_string().into()),
            };
            if Session::must_rest(&request) {
                self.port = None;
            }
            let done = self.session.handle(header, request, descriptors)?;
            if let Some(answer) = done.answer {
                self.stream.write_all(&answer)?;
            }
            if done.is_changed {
                self.port = self.session.port()?;
            }
        }
    }
}

fn main() -> ExitCode {
    let sockets: Vec<String> = std::env::args().skip(1).collect();
    let [a, b] = sockets.as_slice() else {
        eprintln!("usage: vhost_loop SOCKET_A SOCKET_B");
        return ExitCode::from(2);
    };
    match run([a, b]) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("vhost_loop: {error}");
            ExitCode::FAILURE
        }
    }
}

fn run(sockets: [&String; 2]) -> Result<(), Ended> {
    let listeners = [UnixListener::bind(sockets[0])?, UnixListener::bind(sockets[1])?];
    eprintln!("vhost_loop: ready");
    let mut machines: Vec<Machine> = Vec::new();
    for listener in &listeners {
        listener.set_nonblocking(true)?;
        // A front end waits for its first answer before it goes on to the next socket.
        let stream = loop {
            match listener.accept() {
                Ok((stream, _)) => break stream,
                Err(_) => std::thread::yield_now(),
            }
            for machine in &mut machines {
                machine.hear()?;
            }
        };
        let (incoming, session) = (Incoming::default(), Session::new(OFFER)?);
        machines.push(Machine { stream, incoming, session, port: None });
    }
    let mut pool = Pool::new(PoolLimits::default());
    let mut frames = Vec::with_capacity(BURST);
    loop {
        for machine in &mut machines {
            if !machine.hear()? {
                return Ok(());
            }
        }
        for turn in 0..TURNS {
            let [first, second] = &mut machines[..] else { break };
            let (from, to) = if turn % 2 == 0 { (first, second) } else { (second, first) };
            let (Some(from), Some(to)) = (&mut from.port, &mut to.port) else { break };
            from.rx(&mut pool, BURST, &mut frames)?;
            for frame in frames.drain(..) {
                let _ = to.write(&mut pool, &frame);
                pool.free(frame);
            }
            let _ = to.flush(&mut pool);
        }
    }
}
