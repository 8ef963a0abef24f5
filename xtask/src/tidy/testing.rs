//! Rules for tests: a test is not ignored, compares errors instead of expecting any panic, and does not sleep.

use super::source::{Complaint, SourceFile};

/// No test has `#[ignore]` or `#[should_panic]`.
pub(super) fn check_attributes(file: &SourceFile) -> Vec<Complaint> {
    let attributes = [
        ("ignore", "a test that does not run", "fix it or delete it"),
        ("should_panic", "a test that passes on any panic", "return the error and compare it"),
    ];
    attributes
        .into_iter()
        .flat_map(|(name, what, instead)| {
            let is_attribute = |at: &usize| file.code[..*at].trim_end().ends_with("#[");
            file.find(name).into_iter().filter(is_attribute).map(move |at| file.complaint(at, what, instead))
        })
        .collect()
}

/// No test sleeps: it would be slow on an idle machine and fail on a busy one.
pub(super) fn check_sleep(file: &SourceFile) -> Vec<Complaint> {
    ["thread::sleep", "time::sleep", "time::sleep_until"]
        .iter()
        .flat_map(|sleep| file.find(sleep))
        .filter(|at| file.is_test(*at))
        .map(|at| file.complaint(at, "a test that sleeps", "wait for the event, or let the test set the clock"))
        .collect()
}

#[cfg(test)]
mod tests {
    use super::super::source::testing::check;
    use super::*;

    #[test]
    fn ignored_tests_and_expected_panics_are_reported() {
        check(check_attributes, "crates/core/src/a.rs", "#[test]\n#[ignore]\nfn f() {}", &[2]);
        check(check_attributes, "crates/core/src/a.rs", "#[test]\n#[ignore = \"slow\"]\nfn f() {}", &[2]);
        check(
            check_attributes,
            "crates/core/tests/it/a.rs",
            "#[test]\n#[should_panic(expected = \"x\")]\nfn f() {}",
            &[2],
        );
        check(check_attributes, "crates/core/src/a.rs", "fn ignore(should_panic: u8) {}", &[]);
    }

    #[test]
    fn a_sleeping_test_is_reported() {
        check(check_sleep, "crates/server/tests/it/a.rs", "fn f() {\n    std::thread::sleep(d);\n}", &[2]);
        check(
            check_sleep,
            "crates/engine/src/a.rs",
            "#[cfg(test)]\nmod tests {\n    fn f() { tokio::time::sleep(d).await }\n}",
            &[3],
        );
        check(check_sleep, "crates/engine/src/driver.rs", "tokio::time::sleep_until(t).await", &[]);
    }
}
