//! CPU time and memory of this process, as Linux reports them.

use std::fs;
use std::time::Duration;

use crate::prove::{CannotRun, Context};

pub(super) fn cpu_time() -> Result<Duration, CannotRun> {
    // The kernel updates its count when the thread yields.
    std::thread::yield_now();
    let text = read("/proc/thread-self/schedstat")?;
    let nanos = text.split_whitespace().next().and_then(|field| field.parse().ok());
    nanos.map(Duration::from_nanos).context(format!("schedstat begins with no number: {text}"))
}

/// Bytes of memory that this process has written to, including the allocator's overhead. Exact, unlike the running
/// counts of `statm`.
pub(super) fn memory() -> Result<u64, CannotRun> {
    let text = read("/proc/self/smaps_rollup")?;
    let kib = |name: &str| {
        let line = text.lines().find_map(|line| line.strip_prefix(name));
        line.and_then(|rest| rest.split_whitespace().next()?.parse::<u64>().ok())
            .context(format!("smaps_rollup has no {name}"))
    };
    Ok((kib("Anonymous:")? + kib("Swap:")?) * 1_024)
}

fn read(path: &str) -> Result<String, CannotRun> {
    fs::read_to_string(path).context(format!("cannot read {path}, which Linux has"))
}
