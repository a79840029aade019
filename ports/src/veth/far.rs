//! Where the container's end of a pair is by now.
//!
//! The switch's end names the other by its index, and its namespace by an id that is good among the
//! switch's ends (`IFLA_LINK_NETNSID`). By both the kernel tells of it, though its namespace is not
//! entered. Which namespace the id stands for is asked of those that can be named: the kernel says
//! of a namespace which id it has. Where none has it, a device is sent there
//! ([`tap::namespace_of_id`]); that takes the kernel's lock on devices, and is done seldom.

use std::collections::HashMap;
use std::fs::File;
use std::io;
use std::os::fd::AsFd;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use crate::netns::{Identity, Netns, run_in};
use crate::packet::Asker;
use crate::rtnl::{KernelLink, Netlink, Which};
use crate::tap::{self, Whereabouts};

/// Devices sent in a second, for all pairs: who has a container may move its end all the time, and
/// one takes tens of milliseconds, most of it waiting.
const SCOUTS: u32 = 4;
/// How often the names of namespaces are read.
const SECOND: Duration = Duration::from_secs(1);
/// For how long none is sent after a pair's end again.
const PAUSE: Duration = Duration::from_secs(4);

/// The namespace of the switch's ends.
#[derive(Clone, Debug)]
pub(super) struct Ends {
    pub netns: Netns,
    /// A socket in it.
    pub netlink: Asker,
    names: Arc<Mutex<Names>>,
    /// Devices sent in the second that began then.
    scouts: Arc<Mutex<(Instant, u32)>>,
}

/// The daemon's namespace and those that have a name, by their ids.
#[derive(Default, Debug)]
struct Names {
    by_id: HashMap<i32, Netns>,
    read: Option<Instant>,
}

impl Ends {
    pub fn new(netns: Netns) -> io::Result<Ends> {
        let netlink = netns.run(Netlink::open)??;
        let scouts = Arc::new(Mutex::new((Instant::now(), 0)));
        Ok(Ends { netns, netlink: Arc::new(Mutex::new(netlink)), names: Arc::default(), scouts })
    }

    /// Asks, or changes, what is among the switch's ends.
    pub fn ask<T>(&self, ask: impl FnOnce(&mut Netlink) -> io::Result<T>) -> io::Result<T> {
        ask(&mut self.netlink.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// The namespace that a name or path stands for, opened, where it has this id.
    fn open_if(&self, id: i32, netns: &Netns) -> Option<File> {
        netns.open().ok().filter(|file| self.id_of(file) == Some(id))
    }

    fn id_of(&self, netns: &File) -> Option<i32> {
        self.ask(|netlink| netlink.given_id_of(netns.as_fd())).ok()?
    }

    /// The namespace with this id, where it is the daemon's or has a name.
    fn reach(&self, id: i32) -> Option<File> {
        let mut names = self.names.lock().unwrap_or_else(PoisonError::into_inner);
        let open = |names: &Names| self.open_if(id, names.by_id.get(&id)?);
        // The id of one that has ended is given again.
        if let Some(file) = open(&names) {
            return Some(file);
        }
        if names.read.is_some_and(|read| read.elapsed() < SECOND) {
            return None;
        }
        let all = Netns::own().into_iter().chain(Netns::named().unwrap_or_default());
        names.by_id = all.filter_map(|netns| Some((self.id_of(&netns.open().ok()?)?, netns))).collect();
        names.read = Some(Instant::now());
        open(&names)
    }

    /// The namespace with this id, which a device is sent to.
    fn scout(&self, id: i32) -> io::Result<File> {
        self.netns.run(|| tap::namespace_of_id(&mut Netlink::open()?, id))?.map_err(|error| {
            let why = "its namespace has no name, and a TAP device that would tell which it is cannot be made there";
            io::Error::new(error.kind(), format!("{why}: {error}"))
        })
    }

    fn may_scout(&self) -> bool {
        let mut scouts = self.scouts.lock().unwrap_or_else(PoisonError::into_inner);
        if scouts.0.elapsed() >= SECOND {
            *scouts = (Instant::now(), 0);
        }
        scouts.1 += 1;
        scouts.1 <= SCOUTS
    }

    /// Runs `work` in the namespace that the other end of the pair with the switch's end `own` is
    /// in, with what the kernel says of it there. `home` is where it should be.
    pub fn visit<T: Send>(
        &self,
        own: i32,
        home: Option<&Netns>,
        work: impl FnOnce(&mut Netlink, &KernelLink, Identity) -> T + Send,
    ) -> io::Result<T> {
        let ends = self.netns.open()?;
        let mut work = Some(work);
        // Between asking where it is and looking there, it may be moved.
        for _ in 0..tap::LOOKS {
            let link = self.ask(|netlink| netlink.link(Which::Index(own)))?.ok_or(io::ErrorKind::NotFound)?;
            let (index, id) = link.elsewhere.ok_or(io::ErrorKind::NotFound)?;
            let known = home.and_then(|home| self.open_if(id, home)).or_else(|| self.reach(id));
            let file = known.map_or_else(|| self.scout(id), Ok)?;
            let identity = Identity::of(&file)?;
            let look = || -> io::Result<Option<T>> {
                let mut netlink = Netlink::open()?;
                let Some(link) = netlink.link(Which::Index(index))? else { return Ok(None) };
                // Nobody else can make one whose other end is ours.
                let is_it = link.elsewhere == Some((own, netlink.id_of(ends.as_fd())?));
                Ok(work.take_if(|_| is_it).map(|work| work(&mut netlink, &link, identity)))
            };
            if let Some(done) = run_in(file.as_fd(), look)?? {
                return Ok(done);
            }
        }
        Err(io::ErrorKind::NotFound.into())
    }
}

/// The other end of a pair, as it is to be and as it was seen.
#[derive(Clone, Debug)]
pub(super) struct Far {
    ends: Ends,
    name: String,
    /// `None`: ours.
    home: Option<Netns>,
    /// The id of its namespace while it was last there.
    home_id: Option<i32>,
    /// The namespace without a name that it was found in, and the id of that.
    found: Option<(i32, Identity)>,
    /// When a device was sent after it last.
    scouted: Option<Instant>,
    whereabouts: Option<Whereabouts>,
}

impl Far {
    pub fn new(ends: Ends, name: String, home: Option<Netns>) -> Far {
        Far { ends, name, home, home_id: None, found: None, scouted: None, whereabouts: None }
    }

    /// The same, whose namespace is known by its path, and not kept open.
    pub fn released(self) -> Far {
        Far { home: self.home.as_ref().map(Netns::released), ..self }
    }

    pub fn whereabouts(&self) -> Option<&Whereabouts> {
        self.whereabouts.as_ref()
    }

    /// Takes note of where it is by now, of which the switch's end is `own`.
    pub fn look(&mut self, own: &KernelLink) {
        let Some((index, id)) = own.elsewhere else { return };
        // What is being moved at this moment the next look will find.
        let Ok(Some(end)) = self.ends.ask(|netlink| netlink.link(Which::IndexIn(index, id))) else { return };
        let home = self.at_home(id);
        self.whereabouts = Some(Whereabouts {
            is_moved: home.is_none(),
            netns: home.unwrap_or_else(|| self.away(id)),
            is_renamed: end.name != self.name,
            name: end.name,
            is_up: end.is_up,
            has_carrier: end.has_carrier,
        });
    }

    /// The namespace with this id, if that is where the end should be.
    fn at_home(&mut self, id: i32) -> Option<Identity> {
        match self.home.clone().map_or_else(Netns::own, Ok).and_then(|home| home.open()) {
            Ok(home) => {
                let identity = Identity::of(&home).ok().filter(|_| self.ends.id_of(&home) == Some(id))?;
                self.home_id = Some(id);
                Some(identity)
            }
            // It may not be looked at, or has lost its name: it is what it was.
            Err(_) => (*self.home_id.get_or_insert(id) == id).then_some(Identity::UNKNOWN),
        }
    }

    /// The namespace with this id, which is another.
    fn away(&mut self, id: i32) -> Identity {
        // That another has the id of one that has ended is not noticed where both happen between
        // two looks.
        self.found = self.found.filter(|&(found, _)| found == id);
        if let Some((_, identity)) = self.found {
            return identity;
        }
        if let Some(identity) = self.ends.reach(id).and_then(|file| Identity::of(&file).ok()) {
            return identity;
        }
        if self.scouted.is_none_or(|scouted| scouted.elapsed() >= PAUSE) && self.ends.may_scout() {
            self.scouted = Some(Instant::now());
            self.found = self.ends.scout(id).and_then(|file| Ok((id, Identity::of(&file)?))).ok();
        }
        self.found.map_or(Identity::UNKNOWN, |(_, identity)| identity)
    }
}
