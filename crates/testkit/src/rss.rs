//! Memory as Linux counts it: what of this process is in memory now, and the most there was.

use std::fs;

use crate::prove::CannotRun;

/// What is in memory now, in KiB.
///
/// # Errors
/// Where there is no `/proc`.
pub fn now() -> Result<u64, CannotRun> {
    status("VmRSS:")
}

/// The most since [`forget_peak`], in KiB.
///
/// # Errors
/// Where there is no `/proc`.
pub fn peak() -> Result<u64, CannotRun> {
    status("VmHWM:")
}

/// Begins to look for the most anew.
///
/// # Errors
/// Where there is no `/proc`.
pub fn forget_peak() -> Result<(), CannotRun> {
    fs::write("/proc/self/clear_refs", "5").map_err(|error| CannotRun(format!("cannot forget the peak: {error}")))
}

fn status(name: &str) -> Result<u64, CannotRun> {
    let status = fs::read_to_string("/proc/self/status")?;
    let line = status.lines().find_map(|line| line.strip_prefix(name));
    let kib = line.and_then(|line| line.split_whitespace().next()?.parse().ok());
    kib.ok_or_else(|| CannotRun(format!("/proc/self/status has no {name}")))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_peak_remembers_what_was_given_back() {
        let before = now().expect("Linux");
        let much = vec![1_u8; 64 << 20];
        assert!(std::hint::black_box(&much).iter().all(|byte| *byte == 1));
        drop(much);
        assert!(peak().expect("Linux") >= before + (60 << 10));
    }
}
