//! Records on their way to standard error. One thread waits for it; whoever has something to say
//! does not, even while nobody reads the log.
//!
//! A record that finds no room is lost, and so is all behind it until what waits has been written.
//! Then one record says how many they were: what is written is whole, and in order.

use std::collections::VecDeque;
use std::io;
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

/// Bytes of records that wait at most, or one record, once there is a thread: some 2000 lines.
const ROOM: usize = 256 << 10;

#[derive(Default)]
pub(super) struct Writer {
    waiting: Mutex<Waiting>,
    changed: Condvar,
}

#[derive(Default)]
struct Waiting {
    records: VecDeque<String>,
    bytes: usize,
    /// How many were lost behind these.
    lost: u64,
    has_thread: bool,
    is_writing: bool,
}

impl Waiting {
    /// The next to be written; `tell` says of so many that they were lost.
    fn next(&mut self, tell: impl Fn(u64) -> String) -> Option<String> {
        if let Some(record) = self.records.pop_front() {
            self.bytes -= record.len();
            return Some(record);
        }
        let lost = std::mem::take(&mut self.lost);
        (lost > 0).then(|| tell(lost))
    }

    fn is_done(&self) -> bool {
        self.records.is_empty() && self.lost == 0 && !self.is_writing
    }
}

impl Writer {
    /// A record is to be written.
    pub fn push(&self, record: String) {
        let mut waiting = self.lock();
        let is_full = waiting.has_thread && waiting.bytes > 0 && waiting.bytes + record.len() > ROOM;
        if waiting.lost > 0 || is_full {
            waiting.lost += 1;
            return;
        }
        waiting.bytes += record.len();
        waiting.records.push_back(record);
        self.changed.notify_all();
    }

    /// A thread runs [`Writer::run`] from now on.
    pub fn begin(&self) {
        self.lock().has_thread = true;
    }

    /// Writes to `out` what comes, for ever. What nobody takes is lost.
    pub fn run(&self, out: &mut impl io::Write, tell: impl Fn(u64) -> String) {
        let mut waiting = self.lock();
        loop {
            let Some(record) = waiting.next(&tell) else {
                waiting = self.changed.wait(waiting).unwrap_or_else(PoisonError::into_inner);
                continue;
            };
            waiting.is_writing = true;
            drop(waiting);
            let _ = out.write_all(record.as_bytes());
            waiting = self.lock();
            waiting.is_writing = false;
            self.changed.notify_all();
        }
    }

    /// Waits until all is written, for `patience` at most. Without a thread it is written here.
    pub fn flush(&self, patience: Duration, out: &mut impl io::Write, tell: impl Fn(u64) -> String) {
        let mut waiting = self.lock();
        if waiting.has_thread {
            drop(self.changed.wait_timeout_while(waiting, patience, |waiting| !waiting.is_done()));
            return;
        }
        while let Some(record) = waiting.next(&tell) {
            let _ = out.write_all(record.as_bytes());
        }
    }

    /// What waits.
    #[cfg(test)]
    pub fn waiting(&self) -> String {
        self.lock().records.iter().map(String::as_str).collect()
    }

    fn lock(&self) -> MutexGuard<'_, Waiting> {
        // Each change of what waits is whole.
        self.waiting.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::Arc;
    use std::sync::mpsc::{Receiver, channel};
    use std::thread;

    /// What is written, once its reader begins to read.
    struct Pipe {
        begun: Receiver<()>,
        text: Arc<Mutex<String>>,
    }

    impl io::Write for Pipe {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            let _ = self.begun.recv();
            self.text.lock().unwrap().push_str(std::str::from_utf8(bytes).unwrap());
            Ok(bytes.len())
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    fn tell(lost: u64) -> String {
        format!("{lost} lost\n")
    }

    #[test]
    fn nobody_waits_for_the_reader_and_what_is_written_is_whole_and_in_order() {
        const ALL: usize = 1000;
        let (writer, text): (Arc<Writer>, Arc<Mutex<String>>) = Default::default();
        let (begin, begun) = channel();
        let (ours, mut pipe) = (Arc::clone(&writer), Pipe { begun, text: Arc::clone(&text) });
        writer.begin();
        thread::spawn(move || ours.run(&mut pipe, tell));
        let record = |number: usize| format!("{number:01023}\n");
        (0..ALL).for_each(|number| writer.push(record(number)));
        writer.flush(Duration::from_millis(10), &mut io::sink(), tell);
        assert_eq!(*text.lock().unwrap(), "", "nobody has read, and nobody waited for it");
        drop(begin);
        writer.flush(Duration::from_secs(60), &mut io::sink(), tell);
        writer.push(record(ALL));
        writer.flush(Duration::from_secs(60), &mut io::sink(), tell);
        let text = text.lock().unwrap();
        let kept = text.lines().count() - 2;
        // What waits, and one that is being written.
        assert!((ROOM / 1024..=ROOM / 1024 + 1).contains(&kept), "{kept}");
        let written: String = (0..kept).map(record).chain([tell((ALL - kept) as u64), record(ALL)]).collect();
        assert!(*text == written, "{text}");
    }

    #[test]
    fn without_a_thread_what_waits_is_written_at_the_end() {
        let (writer, mut out) = (Writer::default(), Vec::new());
        let long = "x".repeat(2 * ROOM) + "\n";
        writer.push(long.clone());
        writer.push("more\n".to_owned());
        writer.flush(Duration::ZERO, &mut out, tell);
        assert!(out == (long + "more\n").as_bytes());
    }
}
