//! What proofs share: stores filled with rows, servers, callers, and gauges of CPU and memory.

#[cfg(feature = "conformance")]
pub mod authority;
pub(crate) mod busy;
pub mod caller;
pub mod cpu;
pub mod ledger;
pub mod loopback;
pub mod part;
pub mod posthaste;
pub mod rss;
pub mod seeder;
pub mod served;
pub(crate) mod statistics;
pub(crate) mod synced;

use std::fs;
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::Duration;

use tokio::time::Instant;
use tracing::{Level, Subscriber};

use crate::prove::CannotRun;
#[cfg(feature = "conformance")]
pub use authority::Authority;
pub(crate) use busy::{Busy, BusySlice, LOGICAL_BYTES};
pub use caller::{ApiAnswer, ApiConnection, call};
pub use cpu::Cpu;
pub use ledger::{ProducerLoad, Producers, PromiseLedger};
pub use loopback::{Loopback, taken};
pub use part::{ChildProcess, end_with_input};
pub use posthaste::{Launch, Posthaste, address_in, binary};
pub use seeder::{
    CROWD, MessageMint, Of, SeedShape, SeededTarget, THEN, YOUNG, campaign, put_endpoints, settlement, shelf,
    with_delivery,
};
pub use served::{ServedResult, ServerUnderLoad, folder, runtime, seeded_folder};
pub(crate) use statistics::{median, quantile};
pub(crate) use synced::SyncedFile;

/// Runs a proof on this thread.
pub(crate) fn block_on<T>(proof: impl Future<Output = Result<T, CannotRun>>) -> Result<T, CannotRun> {
    tokio::runtime::Builder::new_current_thread().enable_all().build()?.block_on(proof)
}

/// Waits until `holds`, and returns how long it took. Fails after the time `within`.
pub(crate) async fn wait(
    what: &str,
    within: Duration,
    mut holds: impl AsyncFnMut() -> Result<bool, CannotRun>,
) -> Result<Duration, CannotRun> {
    let began = Instant::now();
    while !holds().await? {
        if began.elapsed() > within {
            return Err(CannotRun(format!("no sign of {what} within {within:?}")));
        }
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    Ok(began.elapsed())
}

/// Counts what is missing until nothing is, or until the count has not fallen for the time `still`. Returns the last
/// count.
pub(crate) fn missing_in_the_end(
    still: Duration,
    missing: impl Fn() -> Result<usize, CannotRun>,
) -> Result<usize, CannotRun> {
    let (mut least, mut moved) = (usize::MAX, Instant::now());
    loop {
        let now = missing()?;
        if now < least {
            (least, moved) = (now, Instant::now());
        }
        if now == 0 || moved.elapsed() > still {
            return Ok(now);
        }
        thread::sleep(Duration::from_millis(200));
    }
}

/// Copies the files of a folder as they are now, except those whose names are left out. Returns the copy's folder.
pub(crate) fn copied(from: &Path, to: &Path, is_left_out: impl Fn(&str) -> bool) -> Result<PathBuf, CannotRun> {
    fs::create_dir_all(to)?;
    for file in fs::read_dir(from)? {
        let file = file?;
        let name = file.file_name();
        if !name.to_str().is_some_and(&is_left_out) {
            fs::copy(file.path(), to.join(name))?;
        }
    }
    Ok(to.to_owned())
}

/// Locks a mutex, also after a thread that held it has panicked.
pub(crate) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The log of this process, in memory: the bytes of each event.
#[derive(Clone, Default)]
pub(crate) struct MemoryLog(Arc<Mutex<Vec<Vec<u8>>>>);

impl MemoryLog {
    /// A subscriber that writes everything up to this level into the log.
    pub(crate) fn subscriber(&self, level: Level) -> impl Subscriber + Send + Sync + 'static {
        let log = self.clone();
        tracing_subscriber::fmt().with_max_level(level).with_writer(move || log.clone()).finish()
    }

    pub(crate) fn text(&self) -> Vec<u8> {
        lock(&self.0).concat()
    }

    pub(crate) fn events(&self) -> usize {
        lock(&self.0).len()
    }
}

impl Write for MemoryLog {
    /// The subscriber writes each event at once.
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        lock(&self.0).push(bytes.to_owned());
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// Bytes as hexadecimal digits, for the input of an attacker.
pub(crate) fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

/// The bytes of hexadecimal digits; `None` if they are none.
pub(crate) fn from_hex(digits: &str) -> Option<Vec<u8>> {
    (0..digits.len()).step_by(2).map(|at| u8::from_str_radix(digits.get(at..at + 2)?, 16).ok()).collect()
}
