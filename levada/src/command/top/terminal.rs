//! The terminal of `levada top`: a screen of its own (ECMA-48, xterm's alternate screen), and keys
//! that come at once and are not shown (termios(3)). However `top` ends, short of being killed, the
//! terminal is as it was.

use crate::error::{Failure, print};
use crate::system::os::Signals;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::termios::{LocalModes, OptionalActions, Termios, tcgetattr, tcgetwinsize, tcsetattr};
use std::io::{stdin, stdout};
use std::time::Duration;

/// Lines of a terminal that does not say its size: DEC's VT100, and the smallest that this is made
/// for.
pub(super) const LINES: u16 = 24;
/// See [`LINES`].
pub(super) const COLUMNS: u16 = 80;
/// How long is waited at a time, so that a terminal that was resized is soon filled again.
const WAIT: Duration = Duration::from_millis(200);

/// Lines and columns of the terminal at standard output.
pub(super) fn size() -> (u16, u16) {
    let size = tcgetwinsize(stdout()).ok().filter(|size| size.ws_row > 0 && size.ws_col > 0);
    size.map_or((LINES, COLUMNS), |size| (size.ws_row, size.ws_col))
}

/// The terminal is ours while this lives.
pub(super) struct Terminal {
    /// How keys came before, where standard input is a terminal.
    keys: Option<Termios>,
}

impl Terminal {
    /// Takes the terminal.
    pub fn enter() -> Result<Terminal, Failure> {
        let keys = tcgetattr(stdin()).ok();
        let terminal = Terminal { keys };
        if let Some(before) = &terminal.keys {
            let mut at_once = before.clone();
            // Signals stay: Ctrl-C is one.
            at_once.local_modes -= LocalModes::ICANON | LocalModes::ECHO;
            let _ = tcsetattr(stdin(), OptionalActions::Now, &at_once);
        }
        print("\x1b[?1049h\x1b[?25l").map(|()| terminal)
    }

    /// Whether `q` is among the keys that were pressed, or there will be none any more.
    fn quits(&self) -> bool {
        let mut keys = [0; 64];
        rustix::io::read(stdin(), &mut keys).map_or(true, |read| read == 0 || keys[..read].contains(&b'q'))
    }
}

impl Drop for Terminal {
    fn drop(&mut self) {
        let _ = print("\x1b[?25h\x1b[?1049l");
        if let Some(before) = &self.keys {
            let _ = tcsetattr(stdin(), OptionalActions::Now, before);
        }
    }
}

/// Waits for a while, `most` at most. True: a signal or a key says that it is to end.
pub(super) fn is_to_end(signals: &Signals, terminal: Option<&Terminal>, most: Duration) -> bool {
    let wait = Timespec { tv_sec: 0, tv_nsec: most.min(WAIT).as_nanos() as i64 };
    let input = stdin();
    let terminal = terminal.filter(|terminal| terminal.keys.is_some());
    let mut fds = vec![PollFd::new(signals, PollFlags::IN)];
    fds.extend(terminal.map(|_| PollFd::new(&input, PollFlags::IN)));
    // An error is an interruption; the wait was short.
    if poll(&mut fds, Some(&wait)).unwrap_or(0) == 0 {
        return false;
    }
    !fds[0].revents().is_empty() || terminal.is_some_and(|terminal| !fds[1].revents().is_empty() && terminal.quits())
}
