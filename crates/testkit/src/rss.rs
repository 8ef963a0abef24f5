//! Memory as Linux counts it: what of a process is in memory now, and the most there was.

use std::fs;

use crate::prove::CannotRun;

/// What of this process is in memory now, in KiB.
///
/// # Errors
/// Where there is no `/proc`.
pub fn now() -> Result<u64, CannotRun> {
    status("self", "VmRSS:")
}

/// The most of this process since [`forget_peak`], in KiB.
///
/// # Errors
/// Where there is no `/proc`.
pub fn peak() -> Result<u64, CannotRun> {
    status("self", "VmHWM:")
}

/// Begins to look for the most anew.
///
/// # Errors
/// Where there is no `/proc`.
pub fn forget_peak() -> Result<(), CannotRun> {
    forget("self")
}

/// What of another process is in memory now, in KiB.
///
/// # Errors
/// When there is no such process.
pub fn of(pid: u32) -> Result<u64, CannotRun> {
    status(&pid.to_string(), "VmRSS:")
}

/// The most of another process since [`forget_peak_of`], in KiB.
///
/// # Errors
/// When there is no such process.
pub fn peak_of(pid: u32) -> Result<u64, CannotRun> {
    status(&pid.to_string(), "VmHWM:")
}

/// Begins to look for the most of another process anew.
///
/// # Errors
/// When there is no such process, or it is somebody else's.
pub fn forget_peak_of(pid: u32) -> Result<(), CannotRun> {
    forget(&pid.to_string())
}

fn forget(process: &str) -> Result<(), CannotRun> {
    let path = format!("/proc/{process}/clear_refs");
    fs::write(path, "5").map_err(|error| CannotRun(format!("cannot forget the peak of {process}: {error}")))
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
    fn the_peak_remembers_what_was_given_back() {
        let before = now().expect("Linux");
        let much = vec![1_u8; 64 << 20];
        assert!(std::hint::black_box(&much).iter().all(|byte| *byte == 1));
        drop(much);
        assert!(peak().expect("Linux") >= before + (60 << 10));
    }

    #[test]
    fn a_process_is_looked_at_by_its_number() {
        let me = std::process::id();
        assert!(of(me).expect("Linux") > 0 && peak_of(me).expect("Linux") >= of(me).expect("Linux") / 2);
    }
}
