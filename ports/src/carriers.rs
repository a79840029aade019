//! Carriers: whether interfaces of a namespace have a link, and what that has negotiated, asked of
//! the kernel when it says that a link has changed (rtnetlink(7)).
//!
//! The sockets stay in the namespace that they were made in, so the thread that waits needs no
//! right to enter it.

use crate::ethtool;
use crate::netns::{Identity, Netns};
use crate::rtnl::{Netlink, News, Which};
use datapath::bond::Negotiated;
use std::io;
use std::time::Duration;

/// The links of a namespace.
pub struct Carriers {
    news: News,
    netlink: Netlink,
    place: Option<(Netns, Identity)>,
}

impl Carriers {
    /// In a namespace, or in that of the calling thread.
    ///
    /// # Errors
    /// The namespace is not there, or the kernel does not tell.
    pub fn open(netns: Option<&Netns>) -> io::Result<Carriers> {
        let open = || Ok((News::open(News::LINKS)?, Netlink::open()?));
        let ((news, netlink), place) = match netns {
            None => (open()?, None),
            Some(netns) => {
                (netns.run(open).and_then(|opened: io::Result<_>| opened)?, Some((netns.clone(), netns.identity()?)))
            }
        };
        Ok(Carriers { news, netlink, place })
    }

    /// Waits as long as `patience` for a link to change. Says whether one did.
    ///
    /// # Errors
    /// The namespace is no longer there, or another one is: these links are to be let go.
    pub fn wait(&self, patience: Duration) -> io::Result<bool> {
        let has_changed = self.news.wait(patience)?;
        if let Some((netns, identity)) = &self.place
            && netns.is_another(*identity)
        {
            return Err(io::ErrorKind::NotFound.into());
        }
        Ok(has_changed)
    }

    /// What the link of an interface has negotiated; `None` where it is not up or has no carrier,
    /// or there is no such interface.
    ///
    /// # Errors
    /// The kernel does not answer.
    pub fn negotiated(&mut self, name: &str) -> io::Result<Option<Negotiated>> {
        let link = self.netlink.link(Which::Name(name))?;
        let has_carrier = link.is_some_and(|link| link.is_up && link.has_carrier);
        has_carrier.then(|| ethtool::negotiated(self.news.socket(), name)).transpose()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_interface_that_is_not_there_has_no_carrier() {
        let mut carriers = Carriers::open(None).unwrap();
        assert_eq!(carriers.negotiated("no-such-link").unwrap(), None);
        assert!(carriers.negotiated("lo").is_ok());
    }
}
