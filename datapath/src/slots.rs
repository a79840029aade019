//! Slots: numbers that their owners keep while others come and go.

use std::ops::{Index, IndexMut};

/// Things that are numbered, some numbers being vacant.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Slots<T>(Vec<Option<T>>);

impl<T> Slots<T> {
    /// Most slots: what is kept for each, vacant or not, must not be what fills the memory.
    pub const MOST: u32 = 1 << 20;

    /// What has number `id`; `None` where the slot is vacant or was never used.
    #[must_use]
    #[inline]
    pub fn get(&self, id: u32) -> Option<&T> {
        self.0.get(id as usize)?.as_ref()
    }

    /// The same, to change it.
    #[must_use]
    pub fn get_mut(&mut self, id: u32) -> Option<&mut T> {
        self.0.get_mut(id as usize)?.as_mut()
    }

    /// Gives slot `id` to `owner`, or makes it vacant. Slots up to it come into being; vacant ones
    /// at the end go.
    pub fn set(&mut self, id: u32, owner: Option<T>) {
        if self.0.len() <= id as usize && owner.is_some() {
            self.0.resize_with(id as usize + 1, || None);
        }
        if let Some(slot) = self.0.get_mut(id as usize) {
            *slot = owner;
        }
        while let Some(None) = self.0.last() {
            self.0.pop();
        }
    }

    /// Makes slot `id` vacant; what it had. Its number and those behind it stay in use.
    pub fn take(&mut self, id: u32) -> Option<T> {
        self.0.get_mut(id as usize)?.take()
    }

    /// Makes room for slots up to `slots`, so that they come into being without what is there being
    /// moved.
    pub fn reserve(&mut self, slots: usize) {
        self.0.reserve(slots.saturating_sub(self.0.len()));
    }

    /// Gives the slot behind the last to `owner`; its number.
    pub fn push(&mut self, owner: T) -> u32 {
        self.0.push(Some(owner));
        self.0.len() as u32 - 1
    }

    /// Slots, vacant ones included: all numbers in use are below this.
    #[must_use]
    pub fn len(&self) -> usize {
        self.0.len()
    }

    /// Whether no slot is in use.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// All that are not vacant, with their numbers.
    pub fn iter(&self) -> impl DoubleEndedIterator<Item = (u32, &T)> {
        self.0.iter().enumerate().filter_map(|(id, slot)| Some((id as u32, slot.as_ref()?)))
    }

    /// All that are not vacant, to change them.
    pub fn values_mut(&mut self) -> impl DoubleEndedIterator<Item = &mut T> {
        self.0.iter_mut().flatten()
    }

    /// All that are not vacant.
    pub fn values(&self) -> impl DoubleEndedIterator<Item = &T> {
        self.0.iter().flatten()
    }
}

/// Panics where the slot is vacant, as a slice does behind its end.
impl<T> Index<usize> for Slots<T> {
    type Output = T;

    fn index(&self, id: usize) -> &T {
        self.0[id].as_ref().unwrap_or_else(|| panic!("slot {id} is vacant"))
    }
}

/// Panics where the slot is vacant, as a slice does behind its end.
impl<T> IndexMut<usize> for Slots<T> {
    fn index_mut(&mut self, id: usize) -> &mut T {
        self.0[id].as_mut().unwrap_or_else(|| panic!("slot {id} is vacant"))
    }
}

impl<T> Default for Slots<T> {
    fn default() -> Self {
        Slots(Vec::new())
    }
}

impl<T> FromIterator<T> for Slots<T> {
    fn from_iter<I: IntoIterator<Item = T>>(owners: I) -> Self {
        Slots(owners.into_iter().map(Some).collect())
    }
}

impl<T> From<Vec<T>> for Slots<T> {
    fn from(owners: Vec<T>) -> Self {
        owners.into_iter().collect()
    }
}
