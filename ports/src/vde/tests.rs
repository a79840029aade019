//! Directories and plugs with clients that speak the protocol as libvdeplug does, and with such as
//! lie.

use std::io::{Read as _, Write as _};
use std::os::fd::OwnedFd;
use std::os::unix::fs::{MetadataExt as _, symlink};
use std::os::unix::net::UnixDatagram;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use datapath::frame::{Frame, Pool, PoolLimits};

use super::*;
use crate::vde::remove_left;
use crate::vde::{Counts, VdePort};
use crate::{Port as _, Refused};

/// The longest frame of a plug with an MTU of 1500.
const MAX_FRAME: usize = 1514;

/// A directory of its own for each test, removed when dropped.
struct Scratch(PathBuf);

impl Scratch {
    fn new() -> Scratch {
        static NUMBER: AtomicU32 = AtomicU32::new(0);
        let number = NUMBER.fetch_add(1, Ordering::Relaxed);
        let path = std::env::temp_dir().join(format!("levada-vde-{}-{number}", std::process::id()));
        fs::create_dir(&path).unwrap();
        Scratch(fs::canonicalize(path).unwrap())
    }

    fn options(&self) -> DirectoryOptions {
        DirectoryOptions { path: self.0.join("red"), mode: None, group: None }
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

/// The other end of a plug.
struct Client {
    stream: UnixStream,
    data: UnixDatagram,
    path: PathBuf,
}

/// What a client sends that has its socket at `path`.
fn request(path: &Path) -> Vec<u8> {
    let head = [request::MAGIC, request::VERSION, 0].map(u32::to_ne_bytes).concat();
    [&head[..], &request::answer(path).unwrap(), b"test"].concat()
}

impl Client {
    /// Binds its socket in the directory.
    fn new(directory: &Directory) -> Client {
        static NUMBER: AtomicU32 = AtomicU32::new(0);
        let number = NUMBER.fetch_add(1, Ordering::Relaxed);
        Client::at(directory, directory.path().join(format!(".{:05}-{number:05}", std::process::id())))
    }

    fn at(directory: &Directory, path: PathBuf) -> Client {
        let stream = UnixStream::connect(directory.path().join(CTL)).unwrap();
        let data = UnixDatagram::bind(&path).unwrap();
        data.set_nonblocking(true).unwrap();
        Client { stream, data, path }
    }

    /// Takes the switch's answer.
    fn connect(&mut self) {
        let mut answer = [0; request::ADDRESS_BYTES];
        self.stream.read_exact(&mut answer).unwrap();
        let end = answer[2..].iter().position(|&byte| byte == 0).unwrap();
        self.data.connect(std::str::from_utf8(&answer[2..2 + end]).unwrap()).unwrap();
    }

    fn received(&self) -> Vec<Vec<u8>> {
        let mut buffer = vec![0; 1 << 16];
        std::iter::from_fn(|| self.data.recv(&mut buffer).ok().map(|length| buffer[..length].to_vec())).collect()
    }
}

/// Accepts the client that has connected, and plugs it in with a request for the socket at `path`.
fn plug_in(directory: &mut Directory, path: &Path) -> Result<(UnixStream, Plugged), Refusal> {
    let (stream, peer) = directory.accept().unwrap().unwrap();
    let request = Request::parse(&request(path)).unwrap().unwrap();
    let plugged = directory.plug(&stream, &peer, &request, 3)?;
    Ok((stream, plugged))
}

fn plugged(directory: &mut Directory) -> (Client, UnixStream, Plugged) {
    let mut client = Client::new(directory);
    let (stream, plugged) = plug_in(directory, &client.path).unwrap();
    client.connect();
    (client, stream, plugged)
}

fn port(sockets: &[&Plugged]) -> (VdePort, Arc<Counts>) {
    let counts = Arc::new(Counts::default());
    let sockets: Vec<OwnedFd> = sockets.iter().map(|one| one.data.try_clone().unwrap()).collect();
    (VdePort::new(sockets, MAX_FRAME, Arc::clone(&counts)).unwrap(), counts)
}

fn lengths(pool: &mut Pool, frames: Vec<Frame>) -> Vec<usize> {
    let lengths = frames.iter().map(|frame| pool.len(frame)).collect();
    frames.into_iter().for_each(|frame| pool.free(frame));
    lengths
}

#[test]
fn a_client_plugs_in_exchanges_frames_and_leaves_nothing() {
    let scratch = Scratch::new();
    let mut pool = Pool::new(PoolLimits::default());
    let mut directory = Directory::open(&scratch.options()).unwrap();
    let (client, _stream, plugged) = plugged(&mut directory);
    let (mut port, _) = port(&[&plugged]);
    for length in [60u8, 61, 62] {
        client.data.send(&vec![length; length.into()]).unwrap();
    }
    let mut frames = Vec::new();
    assert_eq!(port.rx(&mut pool, 2, &mut frames).unwrap(), 2);
    assert_eq!(port.rx(&mut pool, 2, &mut frames).unwrap(), 1);
    assert_eq!(port.rx(&mut pool, 2, &mut frames).unwrap(), 0);
    assert_eq!(pool.bytes(&frames[2]), [62; 62]);
    assert_eq!(lengths(&mut pool, frames), [60, 61, 62]);
    let frame = pool.alloc_from(&[7; 1514]).unwrap();
    port.tx(&mut pool, frame).unwrap();
    assert_eq!(client.received(), [vec![7; 1514]]);
    assert_eq!(pool.in_use(), 0);
    let data = directory.path().join("003.1");
    assert!(data.exists());
    // It dies: its socket is left.
    let left = client.path.clone();
    drop((client, port));
    directory.unplug(plugged);
    assert!(!data.exists() && left.exists());
    directory.sweep();
    assert!(!left.exists());
    drop(directory);
    assert!(!scratch.0.join("red").exists());
}

#[test]
fn a_dying_clients_socket_is_removed_once_it_is_closed() {
    let scratch = Scratch::new();
    let mut directory = Directory::open(&scratch.options()).unwrap();
    let (client, stream, plugged) = plugged(&mut directory);
    let left = client.path.clone();
    // The kernel has closed its stream, and its other socket not yet.
    drop(stream);
    directory.unplug(plugged);
    directory.sweep();
    assert!(left.exists());
    drop(client);
    directory.sweep();
    assert!(!left.exists());
}

#[test]
fn sockets_of_clients_that_have_left_are_kept_to_a_bound() {
    let scratch = Scratch::new();
    let mut directory = Directory::open(&scratch.options()).unwrap();
    let gone: Vec<_> = (0..300)
        .map(|_| {
            let (client, _, plugged) = plugged(&mut directory);
            directory.unplug(plugged);
            client
        })
        .collect();
    let paths: Vec<_> = gone.iter().map(|client| client.path.clone()).collect();
    drop(gone);
    directory.sweep();
    assert_eq!(paths.iter().filter(|path| path.exists()).count(), 300 - 256);
}

#[test]
fn a_client_that_does_not_read_costs_its_own_frames_only() {
    let scratch = Scratch::new();
    let mut pool = Pool::new(PoolLimits::default());
    let mut directory = Directory::open(&scratch.options()).unwrap();
    let (client, _stream, plugged) = plugged(&mut directory);
    let (mut port, _) = port(&[&plugged]);
    let mut sent = 0;
    let refused = loop {
        let frame = pool.alloc_from(&[1; 1514]).unwrap();
        match port.tx(&mut pool, frame) {
            Ok(()) => sent += 1,
            Err(refused) => break refused,
        }
        assert!(sent < 10_000, "it is bounded");
    };
    assert_eq!(refused, Refused::Full);
    assert!(sent >= 90, "{sent} frames waited");
    assert_eq!(client.received().len(), sent);
    let frame = pool.alloc_from(&[1; 60]).unwrap();
    assert_eq!(port.tx(&mut pool, frame), Ok(()), "it reads again");
    drop(client);
    let frame = pool.alloc_from(&[1; 60]).unwrap();
    assert_eq!(port.tx(&mut pool, frame), Err(Refused::Down));
    assert_eq!(port.rx(&mut pool, 8, &mut Vec::new()).unwrap(), 0);
    assert_eq!(pool.in_use(), 0);
}

#[test]
fn datagrams_of_any_length_are_frames_and_too_long_ones_have_no_bytes() {
    let scratch = Scratch::new();
    let mut pool = Pool::new(PoolLimits::default());
    let mut directory = Directory::open(&scratch.options()).unwrap();
    let (client, _stream, plugged) = plugged(&mut directory);
    let (mut port, _) = port(&[&plugged]);
    for length in [0, 13, 1514, 1522, 1523, 2000, 65_000, 60] {
        client.data.send(&vec![0; length]).unwrap();
    }
    let mut frames = Vec::new();
    assert_eq!(port.rx(&mut pool, 32, &mut frames).unwrap(), 8);
    assert_eq!(lengths(&mut pool, frames), [0, 13, 1514, 1522, 0, 0, 0, 60]);
}

#[test]
fn the_clients_of_a_hub_hear_each_other_and_the_switch() {
    let scratch = Scratch::new();
    let mut pool = Pool::new(PoolLimits::default());
    let mut directory = Directory::open(&scratch.options()).unwrap();
    let (a, _sa, pa) = plugged(&mut directory);
    let (b, _sb, pb) = plugged(&mut directory);
    let (c, _sc, pc) = plugged(&mut directory);
    let (mut port, counts) = port(&[&pa, &pb, &pc]);
    a.data.send(&[1; 60]).unwrap();
    b.data.send(&[2; 61]).unwrap();
    let poll = |port: &VdePort| {
        let fd = port.fd().unwrap();
        let mut fds = [rustix::event::PollFd::new(&fd, rustix::event::PollFlags::IN)];
        rustix::event::poll(&mut fds, Some(&rustix::event::Timespec::default())).unwrap()
    };
    assert_eq!(poll(&port), 1, "any of them makes it readable");
    let mut frames = Vec::new();
    assert_eq!(port.rx(&mut pool, 1, &mut frames).unwrap(), 1);
    assert_eq!(port.rx(&mut pool, 8, &mut frames).unwrap(), 1);
    assert_eq!(lengths(&mut pool, frames), [60, 61]);
    assert_eq!(poll(&port), 0);
    assert_eq!(a.received(), [vec![2; 61]]);
    assert_eq!(b.received(), [vec![1; 60]]);
    assert_eq!(c.received().len(), 2);
    // All hear the switch; what one misses because it does not read, the others have.
    let sent = (0..2000).filter(|_| {
        let frame = pool.alloc_from(&[3; 1514]).unwrap();
        let taken = port.tx(&mut pool, frame).is_ok();
        taken && a.received().len() + b.received().len() == 2
    });
    assert_eq!(sent.count(), 2000);
    assert_eq!(counts.missed(), 2000 - c.received().len() as u64);
    assert!(counts.missed() > 0);
}

#[test]
fn a_client_that_lies_about_its_socket_is_refused() {
    let scratch = Scratch::new();
    let mut directory = Directory::open(&scratch.options()).unwrap();
    let elsewhere = scratch.0.join("victim");
    let _victim = UnixDatagram::bind(&elsewhere).unwrap();
    let link = directory.path().join(".00001-00001");
    symlink(&elsewhere, &link).unwrap();
    let file = directory.path().join(".00001-00002");
    fs::write(&file, "").unwrap();
    let missing = directory.path().join(".00001-00003");
    let above = directory.path().join("..");
    let dead = directory.path().join(".00001-00004");
    drop(UnixDatagram::bind(&dead).unwrap());
    for path in [&elsewhere, &link, &file, &missing, &above, &dead, Path::new("/"), Path::new("/dev/log")] {
        let mut client = Client::new(&directory);
        let refused = plug_in(&mut directory, path);
        assert!(refused.is_err(), "{}", path.display());
        let shown = refused.unwrap_err().to_string();
        assert!(shown.contains(path.to_str().unwrap()), "{shown}");
        assert_eq!(client.stream.read(&mut [0]).unwrap(), 0, "it is sent away");
    }
    // Somebody else's socket in the right place.
    let client = Client::new(&directory);
    let (stream, mut peer) = directory.accept().unwrap().unwrap();
    peer.uid = Uid::from_raw(12_345);
    let asked = Request::parse(&request(&client.path)).unwrap().unwrap();
    assert!(matches!(directory.plug(&stream, &peer, &asked, 1), Err(Refusal::NotTheirs(_))));
    assert!(!directory.path().join("001.1").exists());
}

#[test]
fn a_client_without_right_to_the_directory_has_its_socket_in_tmp() {
    let scratch = Scratch::new();
    let mut directory = Directory::open(&scratch.options()).unwrap();
    let path = PathBuf::from(format!("/tmp/vde.{:05}-00000", std::process::id()));
    let mut client = Client::at(&directory, path.clone());
    let plugged = plug_in(&mut directory, &path);
    fs::remove_file(&path).unwrap();
    let (_stream, plugged) = plugged.unwrap();
    client.connect();
    client.data.send(&[0; 60]).unwrap();
    let mut pool = Pool::new(PoolLimits::default());
    assert_eq!(port(&[&plugged]).0.rx(&mut pool, 8, &mut Vec::new()).unwrap(), 1);
}

#[test]
fn a_directory_that_is_in_use_is_left_alone() {
    let scratch = Scratch::new();
    let directory = Directory::open(&scratch.options()).unwrap();
    let second = Directory::open(&scratch.options()).unwrap_err();
    assert!(second.to_string().contains("another levada has it open"), "{second}");
    UnixStream::connect(directory.path().join(CTL)).unwrap();
    drop(directory);
    // vde_switch takes no lock.
    fs::create_dir(scratch.options().path).unwrap();
    let other = UnixListener::bind(scratch.options().path.join(CTL)).unwrap();
    let third = Directory::open(&scratch.options()).unwrap_err();
    assert!(third.to_string().contains("another VDE switch has it open"), "{third}");
    UnixStream::connect(scratch.options().path.join(CTL)).unwrap();
    drop(other);
}

#[test]
fn what_a_killed_switch_left_is_taken_over_and_live_sockets_stay() {
    let scratch = Scratch::new();
    let path = scratch.options().path;
    fs::create_dir(&path).unwrap();
    drop(UnixListener::bind(path.join(CTL)).unwrap());
    drop(UnixDatagram::bind(path.join("001.7")).unwrap());
    drop(UnixDatagram::bind(path.join(".00007-00000")).unwrap());
    let live = path.join(".00008-00000");
    let _live = UnixDatagram::bind(&live).unwrap();
    let mut directory = Directory::open(&scratch.options()).unwrap();
    let mut left: Vec<_> = fs::read_dir(&path).unwrap().map(|entry| entry.unwrap().file_name()).collect();
    left.sort();
    assert_eq!(left, [".00008-00000", "ctl"]);
    drop(plugged(&mut directory));
    fs::remove_file(live).unwrap();
}

#[test]
fn what_is_no_vde_directory_is_not_touched() {
    let scratch = Scratch::new();
    let path = scratch.options().path;
    fs::create_dir(&path).unwrap();
    fs::write(path.join("letter"), "dear").unwrap();
    let before = fs::metadata(&path).unwrap().mode();
    let error = Directory::open(&scratch.options()).unwrap_err();
    assert!(error.to_string().contains("letter is not a socket"), "{error}");
    assert_eq!(fs::metadata(&path).unwrap().mode(), before);
    let options = DirectoryOptions { group: Some("no-such-group".to_owned()), ..scratch.options() };
    fs::remove_file(path.join("letter")).unwrap();
    assert!(Directory::open(&options).unwrap_err().to_string().contains("groupadd"));
    assert!(!path.join(CTL).exists());
    let long = DirectoryOptions { path: scratch.0.join("x".repeat(100)), ..scratch.options() };
    assert!(Directory::open(&long).unwrap_err().to_string().contains("more than 92 bytes"));
    assert!(!long.path.exists());
}

#[test]
fn the_mode_and_group_say_who_may_plug_in() {
    let scratch = Scratch::new();
    let bits = |path: &Path| fs::metadata(path).unwrap().mode() & 0o7777;
    for (mode, directory_mode) in [(None, 0o3700), (Some(0o660), 0o3770), (Some(0o666), 0o3777), (Some(0o620), 0o3730)]
    {
        let group = Some(rustix::process::getegid().as_raw().to_string());
        let options = DirectoryOptions { mode, group, ..scratch.options() };
        let mut directory = Directory::open(&options).unwrap();
        assert_eq!(bits(directory.path()), directory_mode, "{mode:?}");
        assert_eq!(bits(&directory.path().join(CTL)), mode.unwrap_or(0o600));
        directory.change(&DirectoryOptions { mode: Some(0o600), ..options }).unwrap();
        assert_eq!(bits(directory.path()), 0o3700);
    }
}

#[test]
fn a_stranger_cannot_send_into_a_plug() {
    let scratch = Scratch::new();
    let mut directory = Directory::open(&scratch.options()).unwrap();
    let (_client, mut stream, _plugged) = plugged(&mut directory);
    let stranger = UnixDatagram::unbound().unwrap();
    assert!(stranger.connect(directory.path().join("003.1")).is_err());
    assert!(stranger.send_to(&[0; 60], directory.path().join("003.1")).is_err());
    stream.flush().unwrap();
}

#[test]
fn a_crowd_of_names_is_looked_at_in_parts() {
    const NAMES: usize = 10_000;
    let scratch = Scratch::new();
    let path = scratch.options().path;
    fs::create_dir(&path).unwrap();
    drop(UnixListener::bind(path.join(CTL)).unwrap());
    let first = path.join(".00001-00000");
    let live = UnixDatagram::bind(&first).unwrap();
    for number in 1..NAMES {
        fs::hard_link(&first, path.join(format!(".00001-{number:05}"))).unwrap();
    }
    drop(live);
    let count = || fs::read_dir(&path).unwrap().count() - 1;
    let mut directory = Directory::open(&scratch.options()).unwrap();
    let mut left = count();
    assert!(left > NAMES / 2, "{left} of {NAMES}: opening it looks at some");
    let mut sweeps = 0;
    while left > 0 {
        directory.sweep();
        assert!(count() < left && left - count() <= 300, "a sweep looks at a few, {left} are left");
        left = count();
        sweeps += 1;
    }
    assert!(sweeps > 10);
    drop(directory);
    assert!(!path.exists());
}

#[test]
fn names_that_others_have_made_do_not_keep_a_client_from_its_plug() {
    let scratch = Scratch::new();
    let mut directory = Directory::open(&scratch.options()).unwrap();
    for number in 0..1000 {
        fs::write(directory.path().join(format!("003.{number}")), "").unwrap();
    }
    let (client, _stream, one) = plugged(&mut directory);
    client.data.send(&[0; 60]).unwrap();
    directory.unplug(one);
}

#[test]
fn what_is_left_is_removed_and_what_is_not_levadas_is_named() {
    let scratch = Scratch::new();
    let path = scratch.options().path;
    let all = usize::MAX;
    assert!(!remove_left(&path, true, all).unwrap(), "there is none");
    fs::create_dir(&path).unwrap();
    assert!(!remove_left(&path, false, all).unwrap(), "it was there before");
    assert!(remove_left(&path, true, all).unwrap(), "it was made, and nothing else");
    fs::create_dir(&path).unwrap();
    drop(UnixListener::bind(path.join(CTL)).unwrap());
    drop(UnixDatagram::bind(path.join("001.7")).unwrap());
    fs::write(path.join("oops"), "").unwrap();
    let error = remove_left(&path, false, all).unwrap_err().to_string();
    assert!(error.contains("oops is not Levada's, and is not removed; remove it"), "{error}");
    assert!(!path.join("001.7").exists() && path.join(CTL).exists(), "it is still known whose it was");
    fs::remove_file(path.join("oops")).unwrap();
    assert!(remove_left(&path, false, all).unwrap());
    let directory = Directory::open(&scratch.options()).unwrap();
    assert!(!remove_left(&path, true, all).unwrap(), "it is in use");
    drop(directory);
}
