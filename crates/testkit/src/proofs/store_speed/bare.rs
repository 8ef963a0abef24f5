//! The baseline that the store is compared with: a file that is appended to and synced.

use std::fs::File;
use std::io::Write;
use std::path::Path;
use std::time::Duration;

use tokio::time::Instant;

use crate::fixtures::busy::{BusySlice, LOGICAL_BYTES};
use crate::prove::CannotRun;

/// A file that is only appended to.
pub(super) struct BareFile {
    file: File,
    /// How long each append with its sync took.
    took: Vec<Duration>,
}

impl BareFile {
    pub(super) fn start(path: &Path) -> Result<Self, CannotRun> {
        Ok(Self { file: File::create_new(path)?, took: Vec::new() })
    }

    /// Appends the bytes of `each` deliveries at a time, each time with a sync, until the slice is over.
    pub(super) fn slice(&mut self, slice: Duration, each: u64) -> Result<BusySlice, CannotRun> {
        let bytes = vec![b'x'; usize::try_from(each * LOGICAL_BYTES).unwrap_or(usize::MAX)];
        let began = Instant::now();
        let mut deliveries = 0;
        while began.elapsed() < slice {
            let at = Instant::now();
            self.file.write_all(&bytes)?;
            self.file.sync_data()?;
            self.took.push(at.elapsed());
            deliveries += each;
        }
        Ok(BusySlice { deliveries, took: began.elapsed() })
    }

    /// A percentile of the time of an append with its sync.
    pub(super) fn within(&self, percent: usize) -> Duration {
        let mut took = self.took.clone();
        took.sort_unstable();
        let last = took.len().saturating_sub(1);
        took.get((took.len() * percent / 100).min(last)).copied().unwrap_or_default()
    }
}
