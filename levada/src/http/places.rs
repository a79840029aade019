//! Places: how many clients are served at once, and how many of them of one user.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// Places for clients.
pub struct Places {
    all: usize,
    of_one: usize,
    taken: Mutex<BTreeMap<u32, usize>>,
}

/// A client's place, free again when dropped.
pub struct Place {
    places: Arc<Places>,
    user: u32,
}

impl Places {
    /// So many in all, and so many for one user.
    pub fn new(all: usize, of_one: usize) -> Arc<Places> {
        Arc::new(Places { all, of_one, taken: Mutex::default() })
    }

    fn taken(&self) -> MutexGuard<'_, BTreeMap<u32, usize>> {
        self.taken.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A place for a client of `user`.
    ///
    /// # Errors
    /// Why there is none.
    pub fn take(self: &Arc<Places>, user: u32) -> Result<Place, String> {
        let mut taken = self.taken();
        let own = taken.get(&user).copied().unwrap_or_default();
        if taken.values().sum::<usize>() >= self.all {
            return Err(format!("{} clients are being served already", self.all));
        }
        if own >= self.of_one {
            return Err(format!("{own} clients of user {user} are being served already"));
        }
        taken.insert(user, own + 1);
        Ok(Place { places: Arc::clone(self), user })
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        let mut taken = self.places.taken();
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
    fn one_user_leaves_places_for_others() {
        let places = Places::new(10, 4);
        let mut mine: Vec<_> = (0..4).map(|_| places.take(1000).unwrap()).collect();
        assert_eq!(places.take(1000).err().unwrap(), "4 clients of user 1000 are being served already");
        let others: Vec<_> = (0..6).map(|n| places.take(n).unwrap()).collect();
        assert_eq!(places.take(77).err().unwrap(), "10 clients are being served already");
        mine.pop();
        assert!(places.take(77).is_ok());
        drop((mine, others));
        assert!(places.taken().is_empty());
    }
}
