//! A full window of the default size, and its memory.

use std::fs;
use std::sync::Arc;
use std::time::Duration;

use posthaste_core::scheduler::{Admission, Limits};
use posthaste_core::{Delivery, DeliveryId, EndpointId, MessageId, Policy, RowIndex, Scheduler, Timestamp};

use serde::{Deserialize, Serialize};

use super::owner::settings;
use super::rows::{lane_id, tier_of};
use crate::prove::{CannotRun, Context};

#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub(super) enum WindowContent {
    ReadyInOneLane,
    /// Deliveries of one lane that wait for their due time.
    WaitingInOneLane,
    /// Ready deliveries, each with a lane of its own.
    ReadyInOwnLanes,
    /// Deliveries that wait for their due time, each with a lane of its own.
    WaitingInOwnLanes,
    /// The negative control: boxes that are larger than a delivery or a lane may be.
    Boxes,
}

const NOW: Timestamp = Timestamp::from_millis(1_700_000_000_000);
/// A wait that is short enough to stay in memory.
const WAIT: Duration = Duration::from_secs(10);
/// A type larger than a delivery or a lane may be.
type TooLarge = [u8; 272];

impl WindowContent {
    /// Fills a window. Returns the bytes per entry.
    pub(super) fn bytes_each(self) -> Result<f64, CannotRun> {
        // One lane may fill the window here, because only the memory of deliveries and lanes is measured.
        let limits = Limits { per_queue: u32::MAX, ..Limits::default() };
        let before = memory()?;
        let after = match self {
            Self::Boxes => {
                let boxes: Vec<Box<TooLarge>> = (0..limits.window).map(|_| Box::new([1; _])).collect();
                let after = memory()?;
                std::hint::black_box(boxes);
                after
            }
            _ => {
                let queue = self.full(limits);
                let after = memory()?;
                std::hint::black_box(queue);
                after
            }
        };
        Ok(after.saturating_sub(before) as f64 / limits.window as f64)
    }

    fn full(self, limits: Limits) -> Scheduler {
        let mut queue = Scheduler::new(limits);
        let policy = Arc::new(Policy::default());
        for number in 0..limits.window {
            let (lane, due) = match self {
                Self::ReadyInOneLane => (0, NOW),
                Self::WaitingInOneLane => (0, NOW + WAIT),
                Self::ReadyInOwnLanes => (number, NOW),
                Self::WaitingInOwnLanes | Self::Boxes => (number, NOW + WAIT),
            };
            let lane = lane_id(lane);
            if !queue.knows_lane(lane) {
                queue.set_lane(NOW, &Arc::new(settings(lane, &policy)));
            }
            let raw = number as u64 + 1;
            let (id, message) = (DeliveryId::from_raw(raw), MessageId::from_raw(raw));
            let delivery = Delivery::queued(id, message, EndpointId(lane.0), lane, tier_of(number, 0), due);
            let place = if due > NOW { RowIndex::Delayed } else { RowIndex::Ready };
            assert_eq!(queue.admit(NOW, delivery, place), Admission::Taken, "there is room for {number}");
        }
        queue
    }
}

/// Bytes of memory that this process has written to, including the allocator's overhead. Exact, unlike the running
/// counts of `statm`.
fn memory() -> Result<u64, CannotRun> {
    let text = fs::read_to_string("/proc/self/smaps_rollup").context("smaps_rollup cannot be read")?;
    let kib = |name: &str| {
        let line = text.lines().find_map(|line| line.strip_prefix(name));
        line.and_then(|rest| rest.split_whitespace().next()?.parse::<u64>().ok())
            .context(format!("smaps_rollup has no {name}"))
    };
    Ok((kib("Anonymous:")? + kib("Swap:")?) * 1_024)
}
