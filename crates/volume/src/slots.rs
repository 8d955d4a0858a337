//! Things under way, by small numbers that are used again.

/// Things by numbers.
#[derive(Debug)]
pub(crate) struct Slots<T> {
    places: Vec<Option<T>>,
    free: Vec<usize>,
}

impl<T> Default for Slots<T> {
    fn default() -> Self {
        Self { places: Vec::new(), free: Vec::new() }
    }
}

impl<T> Slots<T> {
    /// Its number.
    pub(crate) fn insert(&mut self, thing: T) -> u64 {
        match self.free.pop() {
            Some(at) => {
                self.places[at] = Some(thing);
                at as u64
            }
            None => {
                self.places.push(Some(thing));
                self.places.len() as u64 - 1
            }
        }
    }

    pub(crate) fn get(&self, number: u64) -> Option<&T> {
        self.places.get(number as usize)?.as_ref()
    }

    pub(crate) fn get_mut(&mut self, number: u64) -> Option<&mut T> {
        self.places.get_mut(number as usize)?.as_mut()
    }

    /// Its number is free again.
    pub(crate) fn remove(&mut self, number: u64) -> Option<T> {
        let thing = self.places.get_mut(number as usize)?.take()?;
        self.free.push(number as usize);
        Some(thing)
    }

    pub(crate) fn len(&self) -> usize {
        self.places.len() - self.free.len()
    }
}
