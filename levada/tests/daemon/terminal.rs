//! `levada top` in a terminal: a pseudo-terminal (pty(7)) whose other end is the test.

use crate::testbed::{Bed, soon, turn};
use crate::traffic::NEIGHBOURS;
use rustix::process::Signal;
use rustix::termios::{LocalModes, Termios, Winsize, tcgetattr, tcsetwinsize};
use std::fs::File;
use std::io::{BufRead, BufReader, Read, Write};
use std::os::fd::{FromRawFd, OwnedFd};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::{Arc, Mutex};

/// Takes the terminal's own screen, and gives it back.
const TAKEN: &str = "\x1b[?1049h\x1b[?25l";
const GIVEN_BACK: &str = "\x1b[?25h\x1b[?1049l";
/// Before each picture.
const CLEARED: &str = "\x1b[H\x1b[J";

/// A terminal, and what was shown on it.
struct Pty {
    keyboard: File,
    line: OwnedFd,
    shown: Arc<Mutex<String>>,
}

impl Pty {
    fn new(lines: u16, columns: u16) -> Pty {
        let (mut near, mut far) = (0, 0);
        let nothing = std::ptr::null_mut();
        // SAFETY: openpty writes two descriptors to the addresses given, and takes null for a name,
        // modes and a size that nobody asks for.
        let made = unsafe { libc::openpty(&raw mut near, &raw mut far, nothing, nothing.cast(), nothing.cast()) };
        assert_eq!(made, 0, "{}", std::io::Error::last_os_error());
        // SAFETY: the call above has just made them, and nobody else has them.
        let (near, line) = unsafe { (File::from_raw_fd(near), OwnedFd::from_raw_fd(far)) };
        let pty = Pty { keyboard: near.try_clone().unwrap(), line, shown: Arc::default() };
        pty.resize(lines, columns);
        let copy = Arc::clone(&pty.shown);
        std::thread::spawn(move || {
            let (mut screen, mut bytes) = (near, [0; 4096]);
            // It fails when the other end is closed.
            while let Ok(read) = screen.read(&mut bytes) {
                copy.lock().unwrap().push_str(&String::from_utf8_lossy(&bytes[..read]));
            }
        });
        pty
    }

    fn resize(&self, lines: u16, columns: u16) {
        let size = Winsize { ws_row: lines, ws_col: columns, ws_xpixel: 0, ws_ypixel: 0 };
        tcsetwinsize(&self.keyboard, size).unwrap();
    }

    fn modes(&self) -> Termios {
        tcgetattr(&self.line).unwrap()
    }

    /// Starts the program with this as its controlling terminal.
    fn start(&self, bed: &Bed, arguments: &[&str]) -> Child {
        self.shown.lock().unwrap().clear();
        let program = bed.levada(arguments);
        let mut command = Command::new("setsid");
        command.arg("--ctty").arg(program.get_program()).args(program.get_args());
        command.env("LEVADA_RUN_DIR", bed.directory.join("run"));
        let end = || Stdio::from(self.line.try_clone().unwrap());
        command.stdin(end()).stdout(end()).stderr(end()).spawn().unwrap()
    }

    fn press(&self, keys: &str) {
        (&self.keyboard).write_all(keys.as_bytes()).unwrap();
    }

    fn shown(&self) -> String {
        self.shown.lock().unwrap().clone()
    }

    /// The lines of the picture that is there now.
    fn picture(&self) -> Vec<String> {
        let shown = self.shown();
        let last = shown.rsplit_once(CLEARED).map_or("", |(_, last)| last);
        last.lines().map(str::to_owned).collect()
    }
}

fn end(child: &mut Child) -> ExitStatus {
    let mut status = None;
    soon("it ends", || {
        status = child.try_wait().unwrap();
        status.is_some()
    });
    status.unwrap()
}

#[test]
fn top_fills_the_terminal_and_leaves_it_as_it_was() {
    let Some(_turn) = turn("top_fills_the_terminal_and_leaves_it_as_it_was") else { return };
    let bed = Bed::new(&["a", "b", "c"]);
    let _daemon = bed.start(NEIGHBOURS);
    for stop in ["q", "\x03", "TERM"] {
        let pty = Pty::new(24, 80);
        let before = pty.modes();
        let mut top = pty.start(&bed, &["top"]);
        // What is said, the heading, and two rows for the tenant and for each endpoint.
        soon("it fills the terminal", || pty.picture().len() == 3 + 2 * 4);
        assert!(pty.shown().starts_with(TAKEN), "{:?}", pty.shown());
        assert!(!pty.modes().local_modes.intersects(LocalModes::ICANON | LocalModes::ECHO), "keys come at once");
        pty.press("xyz");
        pty.resize(6, 40);
        soon("it is smaller", || {
            let picture = pty.picture();
            picture.len() == 5 && picture.iter().all(|line| line.chars().count() <= 40)
        });
        pty.resize(24, 80);
        soon("it is larger again", || pty.picture().len() == 3 + 2 * 4);
        match stop {
            "TERM" => {
                let pid = rustix::process::Pid::from_child(&top);
                rustix::process::kill_process(pid, Signal::TERM).unwrap();
            }
            keys => pty.press(keys),
        }
        assert!(end(&mut top).success(), "{stop:?}: {:?}", pty.shown());
        soon("the screen is given back", || pty.shown().ends_with(GIVEN_BACK));
        let after = pty.modes();
        assert_eq!(
            (after.local_modes, after.input_modes, after.output_modes),
            (before.local_modes, before.input_modes, before.output_modes)
        );
        assert!(!pty.shown().contains("xyz"), "keys are not shown");
    }
}

#[test]
fn what_goes_on_and_on_ends_with_its_reader() {
    let Some(_turn) = turn("what_goes_on_and_on_ends_with_its_reader") else { return };
    let bed = Bed::new(&["a", "b", "c"]);
    let _daemon = bed.start(NEIGHBOURS);
    for words in [&["top", "--json"][..], &["show", "drops", "--watch", "1"]] {
        let mut child = bed.levada(words).stdout(Stdio::piped()).spawn().unwrap();
        let mut line = String::new();
        BufReader::new(child.stdout.take().unwrap()).read_line(&mut line).unwrap();
        assert!(!line.is_empty());
        assert!(end(&mut child).success(), "{words:?}");
    }
}
