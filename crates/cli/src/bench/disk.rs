//! Measures the disk alone: appends to a file and syncs it. No store that syncs can commit faster.

use std::fs::File;
use std::io::Write;
use std::path::Path;
use std::time::Duration;

use anyhow::{Context, Result};
use serde::Serialize;
use tokio::time::Instant;

/// The size of an append, about what a commit writes under load.
const APPEND_BYTES: usize = 64 * 1024;

/// A file that is appended to, with the times of its syncs.
#[derive(Debug)]
pub(super) struct Disk {
    file: File,
    took: Vec<Duration>,
    lasted: Duration,
}

/// The rate and latency of the disk's syncs.
#[derive(Clone, Copy, Debug, Default, Serialize)]
pub(super) struct Syncs {
    pub(super) per_second: f64,
    pub(super) p50_ms: f64,
    pub(super) p99_ms: f64,
}

impl Disk {
    pub(super) fn start(folder: &Path) -> Result<Self> {
        let file = File::create_new(folder.join("bare")).context("cannot make a file to append to")?;
        Ok(Self { file, took: Vec::new(), lasted: Duration::ZERO })
    }

    /// Appends and syncs for this time.
    pub(super) fn slice(&mut self, lasts: Duration) -> Result<()> {
        let bytes = vec![b'x'; APPEND_BYTES];
        let began = Instant::now();
        while began.elapsed() < lasts {
            let at = Instant::now();
            self.file.write_all(&bytes).and_then(|()| self.file.sync_data()).context("cannot write to the disk")?;
            self.took.push(at.elapsed());
        }
        self.lasted += began.elapsed();
        Ok(())
    }

    pub(super) fn syncs(&self) -> Syncs {
        let mut took = self.took.clone();
        took.sort_unstable();
        let at = |percent: usize| {
            let took = took.get(took.len() * percent / 100).copied().unwrap_or_default();
            took.as_secs_f64() * 1_000.0
        };
        #[expect(clippy::cast_precision_loss, reason = "a count of appends is far below 2^52")]
        let per_second = took.len() as f64 / self.lasted.as_secs_f64();
        Syncs { per_second, p50_ms: at(50), p99_ms: at(99) }
    }
}
