//! Rules for modules: each begins with a doc comment, and none is named `mod.rs`.

use super::source::{Complaint, SourceFile};

/// Every module starts with what it decides, its invariant and where to read next.
pub(super) fn check_module_docs(file: &SourceFile) -> Vec<Complaint> {
    let is_module = file.is("rs") && file.path.contains("src/");
    if !is_module || file.text.starts_with("//!") {
        return Vec::new();
    }
    vec![file.complaint(
        0,
        "the module has no doc comment",
        "begin it with `//!`: what it decides, its invariant, where to read next",
    )]
}

/// `webhook.rs` is beside `webhook/`, so that tabs and search results show the module's name.
pub(super) fn check_no_mod_rs(file: &SourceFile) -> Vec<Complaint> {
    if !file.path.ends_with("/mod.rs") {
        return Vec::new();
    }
    vec![file.complaint(0, "a module named mod.rs", "name it after its folder and put it beside it")]
}

#[cfg(test)]
mod tests {
    use super::super::source::testing::check;
    use super::*;

    #[test]
    fn a_module_without_a_doc_comment_is_reported() {
        check(check_module_docs, "crates/core/src/retry.rs", "use std::fmt;\n", &[1]);
        check(check_module_docs, "crates/core/src/retry.rs", "//! When to try again.\n", &[]);
        check(check_module_docs, "crates/core/tests/it/main.rs", "mod a;\n", &[]);
    }

    #[test]
    fn mod_rs_is_reported() {
        check(check_no_mod_rs, "crates/core/src/scheduler/mod.rs", "//! Queues.\n", &[1]);
        check(check_no_mod_rs, "crates/core/src/scheduler.rs", "//! Queues.\n", &[]);
    }
}
