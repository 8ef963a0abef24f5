//! Rules for Rust code: what only some files may have, what no test may do, and how a module begins.

use super::source::{Complaint, SourceFile};

/// What the core must not name, with reasons; the proof `purity` searches for the same words.
const IMPURE: &str = include_str!("../../core-must-not-know.txt");

/// Words of code that are allowed in some files only.
struct ForbiddenCode {
    words: &'static [&'static str],
    place: Place,
    /// Files and folders to which the rule does not apply.
    homes: &'static [&'static str],
    what: &'static str,
    instead: &'static str,
}

/// The part of a file in which words are forbidden.
#[derive(PartialEq)]
enum Place {
    Everywhere,
    OutsideTests,
    InTests,
}

const FORBIDDEN: [ForbiddenCode; 4] = [
    // The compiler can forbid `unsafe` only crate by crate; one file has SQLite's C function pointers, which need it.
    ForbiddenCode {
        words: &["unsafe"],
        place: Place::Everywhere,
        homes: &["crates/disk/src/vfs.rs"],
        what: "unsafe code",
        instead: "write it without; only crates/disk/src/vfs.rs may have it",
    },
    // The connector checks every address before it connects.
    ForbiddenCode {
        words: &[
            "TcpStream::connect",
            "TcpStream::connect_timeout",
            "TcpSocket",
            "UdpSocket",
            "UnixStream",
            "lookup_host",
            "ToSocketAddrs",
        ],
        place: Place::OutsideTests,
        homes: &["crates/engine/src/connector", "crates/testkit/", "crates/cli/src/demo", "xtask/"],
        what: "outside the connector",
        instead: "send through engine::connector, which checks the address",
    },
    // Every task has an owner that awaits it. Tasks, threads and processes are started by the services, the
    // connections, the command that prints the master key, the store's threads, the simulator with its receivers, and
    // the commands `bench` and `demo`.
    ForbiddenCode {
        words: &["spawn", "spawn_blocking", "spawn_local", "spawn_on", "spawn_scoped"],
        place: Place::OutsideTests,
        homes: &[
            "crates/server/src/run.rs",
            "crates/engine/src/connector",
            "crates/engine/src/master_key/command.rs",
            "crates/store/src/sqlite",
            "crates/simulator/",
            "crates/testkit/",
            "crates/disk/",
            "crates/cli/src/bench.rs",
            "crates/cli/src/demo",
            "xtask/",
        ],
        what: "a task or thread is started here",
        instead: "let server::run or engine::connector own it, so that its end is awaited",
    },
    // A test that sleeps is slow on an idle machine and fails on a busy one.
    ForbiddenCode {
        words: &["thread::sleep", "time::sleep", "time::sleep_until"],
        place: Place::InTests,
        homes: &[],
        what: "a test that sleeps",
        instead: "wait for the event, or let the test set the clock",
    },
];

/// No code outside its homes has the words of [`FORBIDDEN`].
pub(super) fn check_forbidden(file: &SourceFile) -> Vec<Complaint> {
    let mut complaints = Vec::new();
    for rule in FORBIDDEN.iter().filter(|rule| !file.is_in(rule.homes)) {
        for word in rule.words {
            let places = file.find(word).into_iter().filter(|at| match rule.place {
                Place::Everywhere => true,
                Place::OutsideTests => !file.is_test(*at),
                Place::InTests => file.is_test(*at),
            });
            complaints.extend(places.map(|at| file.complaint(at, format!("`{word}`: {}", rule.what), rule.instead)));
        }
    }
    complaints
}

/// The core is pure: its sources do not name clocks, random numbers, IO or threads.
pub(super) fn check_purity(file: &SourceFile) -> Vec<Complaint> {
    if !file.is_in(&["crates/core/src/"]) {
        return Vec::new();
    }
    let words = IMPURE.lines().filter(|line| !line.starts_with('#')).filter_map(|line| line.split_once(' '));
    let places = words.flat_map(|(word, why)| file.find(word).into_iter().map(move |at| (at, word, why.trim_start())));
    places.map(|(at, word, why)| file.complaint(at, format!("the core names {word}"), why)).collect()
}

/// Without `biased;` tokio polls the branches in random order, and a seed no longer repeats a run.
pub(super) fn check_select_is_biased(file: &SourceFile) -> Vec<Complaint> {
    if !file.is_in(&["crates/engine/"]) {
        return Vec::new();
    }
    let is_random = |at: &usize| {
        let body = file.code[at + "select!".len()..].trim_start().trim_start_matches(['{', '(']);
        !body.trim_start().starts_with("biased;")
    };
    let instead = "begin it with `biased;`: shutdown and settles before new work";
    let places = file.find("select!").into_iter().filter(is_random);
    places.map(|at| file.complaint(at, "a select! in random order", instead)).collect()
}

/// No test has `#[ignore]` or `#[should_panic]`.
pub(super) fn check_attributes(file: &SourceFile) -> Vec<Complaint> {
    let attributes = [
        ("ignore", "a test that does not run", "fix it or delete it"),
        ("should_panic", "a test that passes on any panic", "return the error and compare it"),
    ];
    let is_attribute = |at: &usize| file.code[..*at].trim_end().ends_with("#[");
    let find = |(name, what, instead)| {
        file.find(name).into_iter().filter(is_attribute).map(move |at| file.complaint(at, what, instead))
    };
    attributes.into_iter().flat_map(find).collect()
}

/// Every module starts with what it decides, its invariant and where to read next. `webhook.rs` is beside `webhook/`,
/// so that tabs and search results show the module's name.
pub(super) fn check_modules(file: &SourceFile) -> Vec<Complaint> {
    let mut complaints = Vec::new();
    if file.is("rs") && file.path.contains("src/") && !file.text.starts_with("//!") {
        let instead = "begin it with `//!`: what it decides, its invariant, where to read next";
        complaints.push(file.complaint(0, "the module has no doc comment", instead));
    }
    if file.path.ends_with("/mod.rs") {
        complaints.push(file.complaint(0, "a module named mod.rs", "name it after its folder and put it beside it"));
    }
    complaints
}

#[cfg(test)]
mod tests {
    use super::super::source::testing::check;
    use super::*;

    const TEST: &str = "#[cfg(test)]\nmod tests {\n    fn f() { ";

    #[test]
    fn clocks_and_random_maps_are_reported_in_code_of_the_core_only() {
        check(check_purity, "crates/core/src/retry.rs", "fn now() {\n    std::time::SystemTime::now()\n}\n", &[2]);
        check(check_purity, "crates/core/src/retry.rs", "let lanes = HashMap::new();\n", &[1]);
        check(check_purity, "crates/core/src/scheduler/lane.rs", "use std::{env, fs};\n", &[1]);

        check(check_purity, "crates/core/src/retry.rs", "//! No SystemTime here.\nuse std::time::Duration;\n", &[]);
        check(check_purity, "crates/engine/src/clock.rs", "SystemTime::now()", &[]);
    }

    #[test]
    fn unsafe_code_is_reported_outside_its_file() {
        let code = "fn f(p: *const u8) -> u8 {\n    unsafe { *p }\n}\n";
        check(check_forbidden, "crates/store/src/sqlite.rs", code, &[2]);
        check(check_forbidden, "crates/disk/src/disk.rs", code, &[2]);
        check(check_forbidden, "crates/disk/src/vfs.rs", code, &[]);
        check(check_forbidden, "crates/disk/src/lib.rs", "#![deny(unsafe_code)]\n// no unsafe here\n", &[]);
    }

    #[test]
    fn connections_are_reported_outside_the_connector_and_tests() {
        let connects = "//! Health.\nlet s = TcpStream::connect(a).await;";
        check(check_forbidden, "crates/server/src/health.rs", connects, &[2]);
        check(check_forbidden, "crates/engine/src/dispatch.rs", "tokio::net::UdpSocket::bind(a)", &[1]);

        check(check_forbidden, "crates/engine/src/connector/dial.rs", "TcpStream::connect(a)", &[]);
        check(check_forbidden, "crates/server/src/api.rs", &format!("{TEST}TcpStream::connect(a) }} }}"), &[]);
        check(check_forbidden, "crates/server/src/run.rs", "TcpListener::bind(a)", &[]);
    }

    #[test]
    fn tasks_are_reported_outside_their_owners_and_tests() {
        check(check_forbidden, "crates/engine/src/dispatch.rs", "fn f() {\n    tokio::spawn(g());\n}", &[2]);
        check(check_forbidden, "crates/server/src/api.rs", "set.spawn(g());", &[1]);

        check(check_forbidden, "crates/server/src/run.rs", "set.spawn(g());", &[]);
        check(check_forbidden, "crates/engine/src/driver.rs", &format!("{TEST}tokio::spawn(g()); }} }}"), &[]);
        check(check_forbidden, "crates/engine/src/driver.rs", "// never spawn here\nlet respawned = 1;", &[]);
    }

    #[test]
    fn a_sleeping_test_is_reported() {
        check(check_forbidden, "crates/server/tests/it/a.rs", "fn f() {\n    std::thread::sleep(d);\n}", &[2]);
        check(check_forbidden, "crates/engine/src/a.rs", &format!("{TEST}tokio::time::sleep(d).await }}\n}}"), &[3]);
        check(check_forbidden, "crates/engine/src/driver.rs", "tokio::time::sleep_until(t).await", &[]);
    }

    #[test]
    fn a_select_in_random_order_is_reported() {
        let select = |body: &str, lines| {
            let code = format!("tokio::select! {{\n{body}\n}}");
            check(check_select_is_biased, "crates/engine/src/driver.rs", &code, lines);
        };
        select("    a = b() => {}", &[1]);
        select("    biased;\n    a = b() => {}", &[]);
        select("    // first\n    biased;", &[]);
    }

    #[test]
    fn ignored_tests_and_expected_panics_are_reported() {
        check(check_attributes, "crates/core/src/a.rs", "#[test]\n#[ignore]\nfn f() {}", &[2]);
        check(check_attributes, "crates/core/src/a.rs", "#[test]\n#[ignore = \"slow\"]\nfn f() {}", &[2]);
        let panics = "#[test]\n#[should_panic(expected = \"x\")]\nfn f() {}";
        check(check_attributes, "crates/core/tests/it/a.rs", panics, &[2]);
        check(check_attributes, "crates/core/src/a.rs", "fn ignore(should_panic: u8) {}", &[]);
    }

    #[test]
    fn modules_without_a_doc_comment_and_named_mod_rs_are_reported() {
        check(check_modules, "crates/core/src/retry.rs", "use std::fmt;\n", &[1]);
        check(check_modules, "crates/core/src/retry.rs", "//! When to try again.\n", &[]);
        check(check_modules, "crates/core/tests/it/main.rs", "mod a;\n", &[]);

        check(check_modules, "crates/core/src/scheduler/mod.rs", "//! Queues.\n", &[1]);
        check(check_modules, "crates/core/src/scheduler.rs", "//! Queues.\n", &[]);
    }
}
