//! The deliveries of the window, by id.
//!
//! Invariant: an id has at most one entry.

use std::ops::Index;

use super::{RowIndex, Stage};
use crate::delivery::Delivery;
use crate::id::DeliveryId;
use crate::id_map::IdMap;
use crate::slots::Slots;

/// One delivery of the window.
#[derive(Debug)]
pub(super) struct Item {
    pub(super) delivery: Delivery,
    /// The index of its lane.
    pub(super) lane: u32,
    /// Its index in `Scheduler::in_flight` or `Scheduler::recording`, by its stage.
    pub(super) number: u32,
    pub(super) place: RowIndex,
    pub(super) stage: Stage,
    /// [`crate::delivery::Decision::keeps_wait`] of its last attempt.
    pub(super) keeps_wait: bool,
}

/// Items are kept in a slab, so that the table of ids stays small: most of a window's memory is here.
#[derive(Debug, Default)]
pub(super) struct Items {
    items: Slots<Item>,
    numbers: IdMap<DeliveryId, u32>,
}

impl Items {
    pub(super) fn insert(&mut self, item: Item) {
        let id = item.delivery.id;
        let number = self.items.insert(item);
        self.numbers.insert(id, number);
    }

    pub(super) fn remove(&mut self, id: &DeliveryId) -> Option<Item> {
        self.items.remove(self.numbers.remove(id)?)
    }

    pub(super) fn get(&self, id: &DeliveryId) -> Option<&Item> {
        self.items.get(*self.numbers.get(id)?)
    }

    pub(super) fn get_mut(&mut self, id: &DeliveryId) -> Option<&mut Item> {
        self.items.get_mut(*self.numbers.get(id)?)
    }

    pub(super) fn contains(&self, id: &DeliveryId) -> bool {
        self.numbers.contains_key(id)
    }

    /// All items, in an order that has no meaning but is the same in every run.
    pub(super) fn iter(&self) -> impl Iterator<Item = &Item> {
        self.items.iter()
    }

    pub(super) fn len(&self) -> usize {
        self.numbers.len()
    }
}

impl Index<&DeliveryId> for Items {
    type Output = Item;

    fn index(&self, id: &DeliveryId) -> &Item {
        self.get(id).expect("the delivery is in the window")
    }
}
