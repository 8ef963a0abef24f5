//! Every task has an owner who awaits it, and a loop that chooses chooses in a written order.

use super::source::{Complaint, SourceFile};

/// Where tasks, threads and processes begin: the services, the connections, the command that prints
/// the master key, the store's own threads, the simulator with its receivers, and the commands that
/// measure or show.
const HOMES: &[&str] = &[
    "crates/server/src/run.rs",
    "crates/engine/src/connector",
    "crates/engine/src/master_key/command.rs",
    "crates/store/src/sqlite",
    "crates/testkit/",
    "crates/disk/",
    "crates/cli/src/bench",
    "crates/cli/src/demo",
    "xtask/",
];

const SPAWNS: &[&str] = &["spawn", "spawn_blocking", "spawn_local", "spawn_on", "spawn_scoped"];

/// `spawn` stands only in its homes.
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
                "a task or thread begins here",
                "let server::run or engine::connector own it, so that somebody hears it end",
            )
        })
        .collect()
}

/// Without `biased;` tokio rolls dice among the arms, and a seed no longer repeats a run.
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
    fn a_task_without_an_owner_is_caught() {
        check(check_spawn, "crates/engine/src/dispatch.rs", "fn f() {\n    tokio::spawn(g());\n}", &[2]);
        check(check_spawn, "crates/server/src/api.rs", "set.spawn(g());", &[1]);
    }

    #[test]
    fn tasks_at_home_and_in_tests_are_fine() {
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
    fn a_select_that_rolls_dice_is_caught() {
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
