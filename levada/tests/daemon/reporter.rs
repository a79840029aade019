//! Servers that report their load: `levada report` in a namespace, and datagrams made by hand.

use crate::testbed::Bed;
use control::report::{Report, id};
use ring::hmac;
use rustix::process::{Pid, Signal, kill_process};
use std::path::Path;
use std::process::{Child, Stdio};
use std::time::SystemTime;

/// A process that reports.
pub struct Reporter(pub Child);

impl Reporter {
    /// `levada report` in the namespace `name`.
    pub fn start(bed: &Bed, name: &str, key: &Path, load: &Path, to: &str, how: &[&str]) -> Reporter {
        let path = |path: &Path| path.to_str().unwrap().to_owned();
        let (key, load) = (path(key), path(load));
        let what = ["report", "--key", &key, "--load-from", &load, "--to", to];
        let mut command = bed.levada(&[&what[..], how].concat());
        command.stdout(Stdio::null()).stderr(Stdio::null());
        Reporter(bed.space(name).run(|| command.spawn().unwrap()).unwrap())
    }

    /// Ends it as systemd does; it says that nothing went wrong.
    pub fn end(mut self) {
        kill_process(Pid::from_raw(self.0.id() as i32).unwrap(), Signal::TERM).unwrap();
        assert!(self.0.wait().unwrap().success());
    }
}

impl Drop for Reporter {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Writes a load average as /proc/loadavg has it, at once.
pub fn set_load(file: &Path, load: &str) {
    let new = file.with_extension("new");
    std::fs::write(&new, format!("{load} 9.99 9.99 1/99 7\n")).unwrap();
    std::fs::rename(new, file).unwrap();
}

/// A first report that says of `backend` that it has no load, under the key in a file.
pub fn signed(key: &Path, backend: &str) -> Vec<u8> {
    let text = std::fs::read_to_string(key).unwrap();
    let digits = text.split_whitespace().last().unwrap();
    let secret: Vec<u8> =
        (0..digits.len()).step_by(2).map(|at| u8::from_str_radix(&digits[at..at + 2], 16).unwrap()).collect();
    let now = SystemTime::UNIX_EPOCH.elapsed().unwrap().as_nanos() as u64;
    let report = Report { backend: id(backend), boot: 1, sequence: 1, time_ns: now, load_milli: 0 };
    let mac = hmac::sign(&hmac::Key::new(hmac::HMAC_SHA256, &secret), &report.write());
    [&report.write()[..], mac.as_ref()].concat()
}
