//! The core is pure: its sources must not name clocks, random numbers, IO or threads. And `unsafe` is
//! allowed in one file only.
//!
//! The forbidden words are in `xtask/core-must-not-know.txt`; the proof `purity` searches for the same ones.

use super::source::{Complaint, SourceFile};

const WORDS: &str = include_str!("../../core-must-not-know.txt");

/// No word of the list occurs in the core's code.
pub(super) fn check_purity(file: &SourceFile) -> Vec<Complaint> {
    if !file.is_in(&["crates/core/src/"]) {
        return Vec::new();
    }
    WORDS
        .lines()
        .filter(|line| !line.starts_with('#'))
        .filter_map(|line| line.split_once(char::is_whitespace))
        .flat_map(|(word, why)| {
            file.find(word)
                .into_iter()
                .map(move |at| file.complaint(at, format!("the core names {word}"), why.trim_start()))
        })
        .collect()
}

/// The file with SQLite's C function pointers, the only one that needs `unsafe`.
const UNSAFE: &[&str] = &["crates/disk/src/vfs.rs"];

/// The compiler can forbid `unsafe` only crate by crate; this rule limits it to one file of the crate that
/// needs it.
pub(super) fn check_unsafe(file: &SourceFile) -> Vec<Complaint> {
    if file.is_in(UNSAFE) {
        return Vec::new();
    }
    let found = file.find("unsafe").into_iter().filter(|at| !file.code[*at..].starts_with("unsafe_"));
    found
        .map(|at| file.complaint(at, "`unsafe` code", "write it without; only crates/disk/src/vfs.rs may have it"))
        .collect()
}

#[cfg(test)]
mod tests {
    use super::super::source::testing::check;
    use super::*;

    #[test]
    fn a_clock_or_a_random_map_in_the_core_is_reported() {
        check(check_purity, "crates/core/src/retry.rs", "fn now() {\n    std::time::SystemTime::now()\n}\n", &[2]);
        check(check_purity, "crates/core/src/retry.rs", "let lanes = HashMap::new();\n", &[1]);
        check(check_purity, "crates/core/src/scheduler/lane.rs", "use std::{env, fs};\n", &[1]);
    }

    #[test]
    fn unsafe_code_is_reported_outside_its_file() {
        let code = "fn f(p: *const u8) -> u8 {\n    unsafe { *p }\n}\n";
        check(check_unsafe, "crates/store/src/sqlite.rs", code, &[2]);
        check(check_unsafe, "crates/disk/src/disk.rs", code, &[2]);
        check(check_unsafe, "crates/disk/src/vfs.rs", code, &[]);
        check(check_unsafe, "crates/disk/src/lib.rs", "#![deny(unsafe_code)]\n// no unsafe here\n", &[]);
    }

    #[test]
    fn comments_and_other_crates_may_name_clocks() {
        check(check_purity, "crates/core/src/retry.rs", "//! No SystemTime here.\nuse std::time::Duration;\n", &[]);
        check(check_purity, "crates/engine/src/clock.rs", "SystemTime::now()", &[]);
    }
}
