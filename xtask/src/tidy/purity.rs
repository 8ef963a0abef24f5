//! The core asks neither the time nor the dice nor the outside, and its sources do not name them; and
//! `unsafe` has one place.
//!
//! The words are in `xtask/core-must-not-know.txt`; the proof `purity` searches for the same ones.

use super::source::{Complaint, SourceFile};

const WORDS: &str = include_str!("../../core-must-not-know.txt");

/// No word of the list stands in the core's code.
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

/// Where SQLite's C function pointers are: no other place may do without the compiler's word.
const UNSAFE: &[&str] = &["crates/disk/src/vfs.rs"];

/// The compiler forbids `unsafe` crate by crate; here it is held to one file of the one crate that
/// may.
pub(super) fn check_unsafe(file: &SourceFile) -> Vec<Complaint> {
    if file.is_in(UNSAFE) {
        return Vec::new();
    }
    let found = file.find("unsafe").into_iter().filter(|at| !file.code[*at..].starts_with("unsafe_"));
    found
        .map(|at| file.complaint(at, "`unsafe` code", "do without; only crates/disk/src/vfs.rs has to speak C"))
        .collect()
}

#[cfg(test)]
mod tests {
    use super::super::source::testing::check;
    use super::*;

    #[test]
    fn a_clock_or_dice_in_the_core_is_caught() {
        check(check_purity, "crates/core/src/retry.rs", "fn now() {\n    std::time::SystemTime::now()\n}\n", &[2]);
        check(check_purity, "crates/core/src/retry.rs", "let lanes = HashMap::new();\n", &[1]);
        check(check_purity, "crates/core/src/queue/lane.rs", "use std::{env, fs};\n", &[1]);
    }

    #[test]
    fn unsafe_code_is_caught_wherever_it_is_not_needed() {
        let code = "fn f(p: *const u8) -> u8 {\n    unsafe { *p }\n}\n";
        check(check_unsafe, "crates/store/src/sqlite.rs", code, &[2]);
        check(check_unsafe, "crates/disk/src/disk.rs", code, &[2]);
        check(check_unsafe, "crates/disk/src/vfs.rs", code, &[]);
        check(check_unsafe, "crates/disk/src/lib.rs", "#![deny(unsafe_code)]\n// no unsafe here\n", &[]);
    }

    #[test]
    fn words_about_clocks_and_clocks_elsewhere_are_fine() {
        check(check_purity, "crates/core/src/retry.rs", "//! No SystemTime here.\nuse std::time::Duration;\n", &[]);
        check(check_purity, "crates/engine/src/clock.rs", "SystemTime::now()", &[]);
    }
}
