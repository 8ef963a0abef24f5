//! How a test is written: it always runs, it says what it expects, and it waits for nothing.

use super::source::{Complaint, SourceFile};

/// No test is switched off, and none passes on any panic whatever.
pub(super) fn check_attributes(file: &SourceFile) -> Vec<Complaint> {
    let attributes = [
        ("ignore", "a test that does not run", "mend it or delete it"),
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

/// A test that sleeps is slow on a quiet machine and wrong on a busy one.
pub(super) fn check_sleep(file: &SourceFile) -> Vec<Complaint> {
    ["thread::sleep", "time::sleep", "time::sleep_until"]
        .iter()
        .flat_map(|sleep| file.find(sleep))
        .filter(|at| file.is_test(*at))
        .map(|at| file.complaint(at, "a test that sleeps", "wait for the event itself, or turn a clock by hand"))
        .collect()
}

#[cfg(test)]
mod tests {
    use super::super::source::testing::check;
    use super::*;

    #[test]
    fn tests_that_are_off_or_expect_any_panic_are_caught() {
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
    fn a_sleeping_test_is_caught() {
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
