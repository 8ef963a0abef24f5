//! A slab: values kept by small indices. An index is reused once its value is removed, so callers must not keep
//! an index longer than the value.

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
    pub(crate) fn insert(&mut self, value: T) -> u32 {
        if let Some(index) = self.free.pop() {
            self.entries[index as usize] = Some(value);
            return index;
        }
        self.entries.push(Some(value));
        u32::try_from(self.entries.len() - 1).expect("the window bounds how many there are")
    }

    pub(crate) fn remove(&mut self, index: u32) -> Option<T> {
        let value = self.entries.get_mut(index as usize)?.take()?;
        self.free.push(index);
        Some(value)
    }

    pub(crate) fn get(&self, index: u32) -> Option<&T> {
        self.entries.get(index as usize)?.as_ref()
    }

    pub(crate) fn get_mut(&mut self, index: u32) -> Option<&mut T> {
        self.entries.get_mut(index as usize)?.as_mut()
    }

    pub(crate) fn len(&self) -> usize {
        self.entries.len() - self.free.len()
    }

    /// Every index in use is below this.
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
    fn an_index_is_reused_once_its_value_is_removed() {
        let mut slots = Slots::default();
        let (a, b) = (slots.insert('a'), slots.insert('b'));
        assert_eq!(slots.remove(a), Some('a'));
        assert_eq!((slots.remove(a), slots.get(a), slots.len()), (None, None, 1));
        assert_eq!(slots.insert('c'), a);
        assert_eq!(slots.iter().collect::<String>(), "cb");
        assert_eq!((slots.get(b), slots.bound()), (Some(&'b'), 2));
    }
}
