//! Permits: how many clients are served at once, and how many of them of one user.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// Permits for clients.
pub struct Permits {
    all: usize,
    of_one: usize,
    taken: Mutex<BTreeMap<u32, usize>>,
}

/// A client's permit, free again when dropped.
pub struct Permit {
    permits: Arc<Permits>,
    user: u32,
}

impl Permits {
    /// So many in all, and so many for one user.
    pub fn new(all: usize, of_one: usize) -> Arc<Permits> {
        Arc::new(Permits { all, of_one, taken: Mutex::default() })
    }

    fn taken(&self) -> MutexGuard<'_, BTreeMap<u32, usize>> {
        self.taken.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A permit for a client of `user`.
    ///
    /// # Errors
    /// Why there is none.
    pub fn take(self: &Arc<Permits>, user: u32) -> Result<Permit, String> {
        let mut taken = self.taken();
        let own = taken.get(&user).copied().unwrap_or_default();
        if taken.values().sum::<usize>() >= self.all {
            return Err(format!("{} clients are being served already", self.all));
        }
        if own >= self.of_one {
            return Err(format!("{own} clients of user {user} are being served already"));
        }
        taken.insert(user, own + 1);
        Ok(Permit { permits: Arc::clone(self), user })
    }
}

impl Drop for Permit {
    fn drop(&mut self) {
        let mut taken = self.permits.taken();
        match taken.get_mut(&self.user) {
            Some(count) if *count > 1 => *count -= 1,
            _ => drop(taken.remove(&self.user)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_user_leaves_permits_for_others() {
        let permits = Permits::new(10, 4);
        let mut mine: Vec<_> = (0..4).map(|_| permits.take(1000).unwrap()).collect();
        assert_eq!(permits.take(1000).err().unwrap(), "4 clients of user 1000 are being served already");
        let others: Vec<_> = (0..6).map(|n| permits.take(n).unwrap()).collect();
        assert_eq!(permits.take(77).err().unwrap(), "10 clients are being served already");
        mine.pop();
        assert!(permits.take(77).is_ok());
        drop((mine, others));
        assert!(permits.taken().is_empty());
    }
}
