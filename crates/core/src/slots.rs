//! Things kept by small numbers: a number is given out again once its thing is gone.

/// Things and their numbers.
#[derive(Debug)]
pub(crate) struct Slots<T> {
    entries: Vec<Option<T>>,
    free: Vec<u32>,
}

impl<T> Default for Slots<T> {
    fn default() -> Self {
        Self { entries: Vec::new(), free: Vec::new() }
    }
}

impl<T> Slots<T> {
    /// Keeps a thing and gives it a number.
    pub(crate) fn insert(&mut self, thing: T) -> u32 {
        if let Some(number) = self.free.pop() {
            self.entries[number as usize] = Some(thing);
            return number;
        }
        self.entries.push(Some(thing));
        u32::try_from(self.entries.len() - 1).expect("the window bounds how many there are")
    }

    pub(crate) fn remove(&mut self, number: u32) -> Option<T> {
        let thing = self.entries.get_mut(number as usize)?.take()?;
        self.free.push(number);
        Some(thing)
    }

    pub(crate) fn get(&self, number: u32) -> Option<&T> {
        self.entries.get(number as usize)?.as_ref()
    }

    pub(crate) fn get_mut(&mut self, number: u32) -> Option<&mut T> {
        self.entries.get_mut(number as usize)?.as_mut()
    }

    /// How many there are.
    pub(crate) fn len(&self) -> usize {
        self.entries.len() - self.free.len()
    }

    /// Every number below this may be in use, none above it.
    pub(crate) fn bound(&self) -> u32 {
        u32::try_from(self.entries.len()).expect("the window bounds how many there are")
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = &T> {
        self.entries.iter().flatten()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_number_is_given_out_again_once_its_thing_is_gone() {
        let mut slots = Slots::default();
        let (a, b) = (slots.insert('a'), slots.insert('b'));
        assert_eq!(slots.remove(a), Some('a'));
        assert_eq!((slots.remove(a), slots.get(a), slots.len()), (None, None, 1));
        assert_eq!(slots.insert('c'), a);
        assert_eq!(slots.iter().collect::<String>(), "cb");
        assert_eq!((slots.get(b), slots.bound()), (Some(&'b'), 2));
    }
}
