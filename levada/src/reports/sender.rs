//! On a server: `levada key` and `levada report`.

use super::court::{READ_AGAIN, wall_ns};
use crate::error::{Failure, complain, print};
use crate::secrets::ReportKey;
use crate::services::load;
use crate::system::os::{Signal, Signals};
use clap::Args;
use control::report::{DEFAULT_PORT, Report, id};
use control::units::time_ns;
use ring::hmac;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, UdpSocket};
use std::path::{Path, PathBuf};
use std::time::Instant;

/// Between two reports, at least and at most, in nanoseconds.
const LEAST_NS: u64 = 50_000_000;
/// See [`LEAST_NS`].
const MOST_NS: u64 = 3_600_000_000_000;

/// `levada key`.
#[derive(Args, Debug)]
pub struct Key {
    /// The backend that it is to speak for: SWITCH/TENANT/SERVICE/BACKEND, or SERVICE/BACKEND of
    /// levada openflow
    #[arg(value_parser = backend_path)]
    pub backend: String,
    /// The file, which is made with mode 0600, or is a key and gets the new one; standard output
    /// where none is given
    pub file: Option<PathBuf>,
}

/// `levada report`.
#[derive(Args, Debug)]
pub struct Reporter {
    /// The backend's key, made by levada key
    #[arg(long, value_name = "FILE")]
    pub key: PathBuf,
    /// Where the daemon or controller receives reports; port 7371 where none is given
    #[arg(long, value_name = "ADDRESS[:PORT]", value_parser = address)]
    pub to: SocketAddr,
    /// How often
    #[arg(long, value_name = "TIME", default_value = "5 s", value_parser = period, conflicts_with = "once")]
    pub every: u64,
    /// Send one report and end
    #[arg(long)]
    pub once: bool,
    /// Where the load average is, as the first word
    #[arg(long, value_name = "FILE", default_value = "/proc/loadavg")]
    pub load_from: PathBuf,
}

fn backend_path(path: &str) -> Result<String, String> {
    let is_path =
        matches!(path.split('/').count(), 2 | 4) && path.split('/').all(|name| control::names::name(name).is_ok());
    if is_path {
        Ok(path.to_owned())
    } else {
        Err("write SWITCH/TENANT/SERVICE/BACKEND, or SERVICE/BACKEND of levada openflow".to_owned())
    }
}

fn address(text: &str) -> Result<SocketAddr, String> {
    let alone = text.parse().ok().map(|ip: IpAddr| SocketAddr::new(ip, DEFAULT_PORT));
    let wrong = || format!("\"{text}\" is no address: write such as 192.0.2.1 or [2001:db8::1]:7371");
    alone.or_else(|| text.parse().ok()).filter(|address| address.port() != 0).ok_or_else(wrong)
}

fn period(text: &str) -> Result<u64, String> {
    time_ns(text, LEAST_NS, MOST_NS).map_err(|wrong| format!("{}: {}", wrong.message, wrong.remedy))
}

/// Makes a key.
pub fn make_key(arguments: &Key) -> Result<(), Failure> {
    let key = ReportKey::new(&arguments.backend).map_err(Failure::Failed)?;
    match &arguments.file {
        Some(file) => key.write(file).map_err(Failure::Failed),
        None => print(&key.text()),
    }
}

/// A key, and the file that it is in, which may get another one.
struct KeyFile<'a> {
    file: &'a Path,
    key: ReportKey,
    /// When it was read last, and what was wrong then.
    read: Instant,
    wrong: String,
}

impl KeyFile<'_> {
    fn open(file: &Path) -> Result<KeyFile<'_>, String> {
        let key = ReportKey::read(file)?;
        Ok(KeyFile { file, key, read: Instant::now(), wrong: String::new() })
    }

    /// Reads the file again, from time to time. Where that cannot be, the key stays; why not is
    /// given once.
    fn look(&mut self, now: Instant) -> Option<String> {
        if now.saturating_duration_since(self.read) < READ_AGAIN {
            return None;
        }
        self.read = now;
        let before = std::mem::take(&mut self.wrong);
        match ReportKey::read(self.file) {
            Ok(key) => self.key = key,
            Err(why) => self.wrong = why,
        }
        (!self.wrong.is_empty() && self.wrong != before).then(|| self.wrong.clone())
    }
}

/// Reports until a signal ends it.
pub fn send(arguments: &Reporter) -> Result<(), Failure> {
    let mut keys = KeyFile::open(&arguments.key).map_err(Failure::Failed)?;
    let failed = |what: &str, error: std::io::Error| Failure::Failed(format!("{what}: {error}"));
    let signals = Signals::block().map_err(|error| failed("cannot receive signals", error))?;
    let any = if arguments.to.is_ipv4() { IpAddr::V4(Ipv4Addr::UNSPECIFIED) } else { Ipv6Addr::UNSPECIFIED.into() };
    let socket = UdpSocket::bind((any, 0)).map_err(|error| failed("cannot make a socket", error))?;
    let mut boot = [0; 4];
    ring::rand::SecureRandom::fill(&ring::rand::SystemRandom::new(), &mut boot)
        .map_err(|_| Failure::Failed("the kernel gives no random numbers".to_owned()))?;
    let boot = u32::from_be_bytes(boot);
    let (started, mut sequence, mut said) = (Instant::now(), 0u32, String::new());
    loop {
        if let Some(why) = keys.look(Instant::now()) {
            complain(&format!("{why}; the key of before is used"));
        }
        let (mac, backend) = (keys.key.mac(), id(&keys.key.path));
        let told = read_load(&arguments.load_from).and_then(|load_milli| {
            // 4 billion reports at 20 a second are seven years; then the next process begins anew.
            sequence = sequence.checked_add(1).ok_or("too many reports; start it again")?;
            let report = Report { backend, boot, sequence, time_ns: wall_ns(), load_milli };
            let signed = report.write();
            let datagram = [&signed[..], hmac::sign(&mac, &signed).as_ref()].concat();
            let sent = socket.send_to(&datagram, arguments.to);
            sent.map(drop).map_err(|error| format!("the report cannot be sent to {}: {error}", arguments.to))
        });
        match told {
            Err(why) if arguments.once => return Err(Failure::Failed(why)),
            Ok(()) if arguments.once => return Ok(()),
            Err(why) if why != said => {
                complain(&format!("{why}; it goes on"));
                said = why;
            }
            Err(_) => {}
            Ok(()) => said.clear(),
        }
        let passed = u64::try_from(started.elapsed().as_nanos()).unwrap_or(u64::MAX);
        if is_ended(&signals, arguments.every - passed % arguments.every) {
            return Ok(());
        }
    }
}

/// Waits so long; whether a signal ended that.
fn is_ended(signals: &Signals, wait_ns: u64) -> bool {
    let until = Instant::now() + std::time::Duration::from_nanos(wait_ns);
    loop {
        let left = until.saturating_duration_since(Instant::now());
        let Ok(left_for) = Timespec::try_from(left) else { return true };
        // An interruption is looked at as any other wake.
        let _ = poll(&mut [PollFd::new(signals, PollFlags::IN)], Some(&left_for));
        // The key is read again in any case: SIGHUP is not needed.
        if signals.next() == Some(Signal::End) {
            return true;
        }
        if left.is_zero() {
            return false;
        }
    }
}

/// A load average in thousandths; one beyond what a report holds is its most.
fn read_load(file: &Path) -> Result<u32, String> {
    let shown = file.display();
    let text = std::fs::read_to_string(file).map_err(|error| format!("cannot read {shown}: {error}"))?;
    let word = text.split_ascii_whitespace().next().unwrap_or_default();
    let milli = load(word).map_err(|why| format!("{shown}: {why}"))?;
    Ok(u32::try_from(milli).unwrap_or(u32::MAX))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs::{Permissions, metadata, set_permissions};
    use std::io::Write as _;
    use std::os::unix::fs::{MetadataExt as _, OpenOptionsExt as _, PermissionsExt as _};

    #[test]
    fn what_is_proposed_for_a_wrong_key_makes_it_a_right_one() {
        let directory = std::env::temp_dir().join(format!("levada-keys-{}", std::process::id()));
        std::fs::create_dir_all(&directory).unwrap();
        let file = directory.join("web1.key");
        let make = || make_key(&Key { backend: "web/web1".to_owned(), file: Some(file.clone()) });
        let write = |text: &str, mode| {
            std::fs::write(&file, text).unwrap();
            set_permissions(&file, Permissions::from_mode(mode)).unwrap();
        };
        let mode = || metadata(&file).unwrap().mode() & 0o777;
        let right = ReportKey::new("web/web1").unwrap().text();
        let (no_digits, more) = (right.replace(char::is_numeric, "g"), right.clone() + "more");
        let halves = ["", &right[..9], &right[..40]].map(Some);
        let wholes = [no_digits.as_str(), more.as_str()].map(Some);
        let files = halves.into_iter().chain(wholes).map(|text| (text, 0o600));
        for (text, has) in files.chain([(None, 0), (Some(right.as_str()), 0o604)]) {
            let _ = std::fs::remove_file(&file);
            text.into_iter().for_each(|text| write(text, has));
            let why = ReportKey::read(&file).err().unwrap();
            if why.contains(&format!("chmod 600 {}", file.display())) {
                set_permissions(&file, Permissions::from_mode(0o600)).unwrap();
            } else {
                assert!(why.contains(&format!("levada key BACKEND {}", file.display())), "{why}");
                make().unwrap();
            }
            assert_eq!(ReportKey::read(&file).map(|key| (key.path, mode())), Ok(("web/web1".to_owned(), 0o600)));
        }
        // Another key takes the place of one that is there; who may read it stays, but for others.
        for (before, after) in [(0o640, 0o640), (0o644, 0o640)] {
            write(&right, before);
            make().unwrap();
            assert_ne!(std::fs::read_to_string(&file).unwrap(), right);
            assert_eq!(mode(), after);
        }
        // Anything else stays, and that is said.
        for other in ["secret of something else\n".to_owned(), "-".repeat(5000), right.clone() + &" ".repeat(5000)] {
            write(&other, 0o600);
            let Err(Failure::Failed(why)) = make() else { panic!("{other:.40}") };
            assert!(why.contains("stays; move it away"), "{why}");
            assert_eq!(std::fs::read_to_string(&file).unwrap(), other);
        }
        // So does the key of another.
        let other = ReportKey::new("web/web2").unwrap().text();
        write(&other, 0o600);
        let Err(Failure::Failed(why)) = make() else { panic!("replaced") };
        assert!(why.contains("is the key of \"web/web2\", and stays"), "{why}");
        assert_eq!(std::fs::read_to_string(&file).unwrap(), other);
        write("secret of something else", 0o600);
        assert!(ReportKey::read(&file).err().unwrap().contains("move it away, and make one: levada key"));
        std::fs::remove_dir_all(&directory).unwrap();
    }

    #[test]
    fn arguments_are_what_they_say() {
        assert_eq!(address("192.0.2.1"), Ok("192.0.2.1:7371".parse().unwrap()));
        assert_eq!(address("2001:db8::1"), Ok("[2001:db8::1]:7371".parse().unwrap()));
        assert_eq!(address("[2001:db8::1]:99"), Ok("[2001:db8::1]:99".parse().unwrap()));
        assert!(address("web1").is_err() && address("192.0.2.1:0").is_err());
        assert_eq!((period("5 s"), period("50ms")), (Ok(5_000_000_000), Ok(LEAST_NS)));
        assert!(period("10 ms").is_err() && period("5").is_err());
        assert!(backend_path("s1/red/web/web1").is_ok() && backend_path("web/web1").is_ok());
        assert!(backend_path("s1/red/web").is_err() && backend_path("s1/red/web/w b").is_err());
    }

    #[test]
    fn another_key_in_the_file_is_used() {
        let file = std::env::temp_dir().join(format!("levada-key-{}", std::process::id()));
        let write = |text: &str| {
            let _ = std::fs::remove_file(&file);
            let made = std::fs::OpenOptions::new().write(true).create_new(true).mode(0o600).open(&file);
            made.unwrap().write_all(text.as_bytes()).unwrap();
        };
        let [one, other] = [(); 2].map(|()| ReportKey::new("web/web1").unwrap().text());
        write(&one);
        let mut keys = KeyFile::open(&file).unwrap();
        let start = keys.read;
        write(&other);
        let mut look = |read_agains: f64| {
            let why = keys.look(start + READ_AGAIN.mul_f64(read_agains));
            (keys.key.text() == other, why.is_some())
        };
        assert_eq!((look(0.9), look(1.0)), ((false, false), (true, false)));
        // Half a key: the one of before stays, and that is said once.
        write(&one[..one.len() / 2]);
        assert_eq!((look(1.9), look(2.0), look(3.0)), ((true, false), (true, true), (true, false)));
        write(&one);
        assert_eq!(look(4.0), (false, false));
        std::fs::remove_file(&file).unwrap();
        assert_eq!((look(5.0), look(6.0)), ((false, true), (false, false)));
    }

    #[test]
    fn a_load_is_the_first_word_of_a_file() {
        let file = std::env::temp_dir().join(format!("levada-loadavg-{}", std::process::id()));
        for (text, wanted) in [("0.53 0.40 0.30 1/99 7\n", Some(530)), ("9999999", Some(u32::MAX)), ("", None)] {
            std::fs::write(&file, text).unwrap();
            assert_eq!(read_load(&file).ok(), wanted);
        }
        std::fs::remove_file(&file).unwrap();
        assert!(read_load(&file).unwrap_err().contains("cannot read"));
    }
}
