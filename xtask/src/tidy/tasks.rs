//! Every task has an owner that awaits it, and every `select!` of the engine has a fixed order.

use super::source::{Complaint, SourceFile};

/// Files that may start tasks, threads and processes: the services, the connections, the command that prints
/// the master key, the store's threads, the simulator with its receivers, and the commands `bench` and `demo`.
const HOMES: &[&str] = &[
    "crates/server/src/run.rs",
    "crates/engine/src/connector",
    "crates/engine/src/master_key/command.rs",
    "crates/store/src/sqlite",
    "crates/simulator/",
    "crates/testkit/",
    "crates/disk/",
    "crates/cli/src/bench",
    "crates/cli/src/demo",
    "xtask/",
];

const SPAWNS: &[&str] = &["spawn", "spawn_blocking", "spawn_local", "spawn_on", "spawn_scoped"];

/// `spawn` occurs only in [`HOMES`].
pub(super) fn check_spawn(file: &SourceFile) -> Vec<Complaint> {
    if file.is_in(HOMES) {
        return Vec::new();
    }
    SPAWNS
        .iter()
        .flat_map(|spawn| file.find(spawn))
        .filter(|at| !file.is_test(*at))
        .map(|at| {
            file.complaint(
                at,
                "a task or thread is started here",
                "let server::run or engine::connector own it, so that its end is awaited",
            )
        })
        .collect()
}

/// Without `biased;` tokio polls the branches in random order, and a seed no longer repeats a run.
pub(super) fn check_select_is_biased(file: &SourceFile) -> Vec<Complaint> {
    if !file.is_in(&["crates/engine/"]) {
        return Vec::new();
    }
    file.find("select!")
        .into_iter()
        .filter(|at| {
            let body = file.code[at + "select!".len()..].trim_start().trim_start_matches(['{', '(']);
            !body.trim_start().starts_with("biased;")
        })
        .map(|at| {
            file.complaint(
                at,
                "a select! in random order",
                "begin it with `biased;`: shutdown and settles before new work",
            )
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::super::source::testing::check;
    use super::*;

    #[test]
    fn a_task_without_an_owner_is_reported() {
        check(check_spawn, "crates/engine/src/dispatch.rs", "fn f() {\n    tokio::spawn(g());\n}", &[2]);
        check(check_spawn, "crates/server/src/api.rs", "set.spawn(g());", &[1]);
    }

    #[test]
    fn tasks_of_owners_and_of_tests_are_allowed() {
        check(check_spawn, "crates/server/src/run.rs", "set.spawn(g());", &[]);
        check(
            check_spawn,
            "crates/engine/src/driver.rs",
            "#[cfg(test)]\nmod tests { fn f() { tokio::spawn(g()); } }",
            &[],
        );
        check(check_spawn, "crates/engine/src/driver.rs", "// never spawn here\nlet respawned = 1;", &[]);
    }

    #[test]
    fn a_select_in_random_order_is_reported() {
        check(check_select_is_biased, "crates/engine/src/driver.rs", "tokio::select! {\n    a = b() => {}\n}", &[1]);
        check(
            check_select_is_biased,
            "crates/engine/src/driver.rs",
            "tokio::select! {\n    biased;\n    a = b() => {}\n}",
            &[],
        );
        check(
            check_select_is_biased,
            "crates/engine/src/driver.rs",
            "tokio::select! {\n    // first\n    biased;\n}",
            &[],
        );
    }
}
