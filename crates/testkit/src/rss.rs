//! Resident memory of a process as Linux counts it: now, and at its peak.

use std::fs;

use crate::prove::CannotRun;

/// The resident memory of this process, in KiB.
///
/// # Errors
/// If there is no `/proc`.
pub fn now() -> Result<u64, CannotRun> {
    status("self", "VmRSS:")
}

/// The peak resident memory of this process since [`forget_peak`], in KiB.
///
/// # Errors
/// If there is no `/proc`.
pub fn peak() -> Result<u64, CannotRun> {
    status("self", "VmHWM:")
}

/// Resets the peak of this process.
///
/// # Errors
/// If there is no `/proc`.
pub fn forget_peak() -> Result<(), CannotRun> {
    reset("self")
}

/// The resident memory of another process, in KiB.
///
/// # Errors
/// If there is no such process.
pub fn of(pid: u32) -> Result<u64, CannotRun> {
    status(&pid.to_string(), "VmRSS:")
}

/// The peak resident memory of another process since [`forget_peak_of`], in KiB.
///
/// # Errors
/// If there is no such process.
pub fn peak_of(pid: u32) -> Result<u64, CannotRun> {
    status(&pid.to_string(), "VmHWM:")
}

/// Resets the peak of another process.
///
/// # Errors
/// If there is no such process, or it belongs to another user.
pub fn forget_peak_of(pid: u32) -> Result<(), CannotRun> {
    reset(&pid.to_string())
}

fn reset(process: &str) -> Result<(), CannotRun> {
    let path = format!("/proc/{process}/clear_refs");
    fs::write(path, "5").map_err(|error| CannotRun(format!("cannot reset the peak of {process}: {error}")))
}

fn status(process: &str, name: &str) -> Result<u64, CannotRun> {
    let status = fs::read_to_string(format!("/proc/{process}/status"))?;
    let line = status.lines().find_map(|line| line.strip_prefix(name));
    let kib = line.and_then(|line| line.split_whitespace().next()?.parse().ok());
    kib.ok_or_else(|| CannotRun(format!("/proc/{process}/status has no {name}")))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn peak_includes_memory_that_was_freed() {
        let before = now().expect("Linux");
        let much = vec![1_u8; 64 << 20];
        assert!(std::hint::black_box(&much).iter().all(|byte| *byte == 1));
        drop(much);
        assert!(peak().expect("Linux") >= before + (60 << 10));
    }

    #[test]
    fn memory_of_a_process_is_read_by_its_id() {
        let me = std::process::id();
        assert!(of(me).expect("Linux") > 0 && peak_of(me).expect("Linux") >= of(me).expect("Linux") / 2);
    }
}
