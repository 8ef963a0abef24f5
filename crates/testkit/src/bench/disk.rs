//! Measures the disk alone: appends to a file and syncs it. No store that syncs can commit faster.

use std::fs::File;
use std::io::Write;
use std::path::Path;
use std::time::Duration;

use serde::Serialize;
use tokio::time::Instant;

use super::tally::percentile_ms;
use crate::prove::{CannotRun, Context};

/// The size of an append, about what a commit writes under load.
const APPEND_BYTES: usize = 64 * 1024;

/// A file that is appended to, with the times of its syncs.
#[derive(Debug)]
pub(super) struct SyncedFile {
    file: File,
    took_us: Vec<u64>,
    lasted: Duration,
}

/// The rate and latency of the disk's syncs.
#[derive(Clone, Copy, Debug, Default, Serialize)]
pub(super) struct DiskSyncs {
    pub(super) per_second: f64,
    pub(super) p50_ms: f64,
    pub(super) p99_ms: f64,
}

impl SyncedFile {
    pub(super) fn start(folder: &Path) -> Result<Self, CannotRun> {
        let file = File::create_new(folder.join("bare")).context("cannot make a file to append to")?;
        Ok(Self { file, took_us: Vec::new(), lasted: Duration::ZERO })
    }

    /// Appends and syncs for this time.
    pub(super) fn slice(&mut self, lasts: Duration) -> Result<(), CannotRun> {
        let bytes = vec![b'x'; APPEND_BYTES];
        let began = Instant::now();
        while began.elapsed() < lasts {
            let at = Instant::now();
            self.file.write_all(&bytes).and_then(|()| self.file.sync_data()).context("cannot write to the disk")?;
            self.took_us.push(u64::try_from(at.elapsed().as_micros()).unwrap_or(u64::MAX));
        }
        self.lasted += began.elapsed();
        Ok(())
    }

    pub(super) fn syncs(mut self) -> DiskSyncs {
        self.took_us.sort_unstable();
        let at = |of_thousand| percentile_ms(&self.took_us, of_thousand);
        DiskSyncs {
            per_second: super::per_second(self.took_us.len() as u64, self.lasted),
            p50_ms: at(500),
            p99_ms: at(990),
        }
    }
}
