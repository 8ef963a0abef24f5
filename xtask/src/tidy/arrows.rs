//! Which crate may depend on which: dependencies point downwards only.
//!
//! `core, crypto ← store, channels ← engine ← server ← cli`; `testkit, simulator → engine and below`;
//! `cli → testkit` for `demo` and `bench`, `cli → simulator` for `demo` and `simulate`; `disk → testkit` for its proofs;
//! `prove` is below everything that has proofs; `xtask → core`.

use super::source::{Complaint, SourceFile, lines};

/// The crates that a crate may depend on, and the external ones that it must not use.
struct CrateRules {
    name: &'static str,
    may_know: &'static [&'static str],
    must_not_know: &'static [&'static str],
}

const CRATES: &[CrateRules] = &[
    CrateRules {
        name: "core",
        may_know: &[],
        must_not_know: &["tokio", "serde", "rand", "fastrand", "getrandom", "chrono", "jiff", "http"],
    },
    CrateRules { name: "crypto", may_know: &[], must_not_know: &["tokio", "anyhow", "clap"] },
    CrateRules {
        name: "store",
        may_know: &["core", "crypto"],
        must_not_know: &["http", "hyper", "axum", "anyhow", "clap"],
    },
    CrateRules {
        name: "channels",
        may_know: &["core", "crypto"],
        must_not_know: &["tokio", "hyper", "rusqlite", "anyhow", "clap"],
    },
    CrateRules {
        name: "engine",
        may_know: &["core", "crypto", "store", "channels"],
        must_not_know: &["axum", "anyhow", "clap", "rusqlite"],
    },
    CrateRules {
        name: "server",
        may_know: &["core", "crypto", "store", "channels", "engine"],
        must_not_know: &["rusqlite", "anyhow", "clap"],
    },
    CrateRules { name: "prove", may_know: &["core"], must_not_know: &["tokio", "anyhow", "clap"] },
    CrateRules {
        name: "simulator",
        may_know: &["core", "store", "engine", "prove"],
        must_not_know: &["axum", "hyper", "rusqlite", "anyhow", "clap"],
    },
    CrateRules {
        name: "testkit",
        may_know: &["core", "crypto", "store", "channels", "engine", "prove"],
        must_not_know: &["axum", "anyhow", "clap"],
    },
    // No crate may depend on it: a process that links it gets its VFS as the default.
    CrateRules {
        name: "disk",
        may_know: &["core", "crypto", "store", "testkit"],
        must_not_know: &["axum", "anyhow", "clap"],
    },
    CrateRules {
        name: "cli",
        may_know: &["core", "crypto", "store", "channels", "engine", "server", "prove", "simulator", "testkit"],
        must_not_know: &["rusqlite"],
    },
    CrateRules { name: "xtask", may_know: &["core"], must_not_know: &[] },
];

/// A manifest names only workspace crates below its own, and no external crate that its crate must not use; the core's
/// names none at all.
pub(super) fn check_arrows(file: &SourceFile) -> Vec<Complaint> {
    let Some(name) = package(file) else { return Vec::new() };
    let Some(rules) = CRATES.iter().find(|rules| rules.name == name) else {
        let what = format!("the crate {name} has no entry in the list of crates");
        return vec![file.complaint(0, what, "add what it may depend on to xtask/src/tidy/arrows.rs")];
    };
    let mut complaints = Vec::new();
    let mut complain = |at, other, instead| {
        complaints.push(file.complaint(at, format!("{name} must not depend on {other}"), instead));
    };
    for (at, dependency) in dependencies(&file.text) {
        match dependency.strip_prefix("posthaste-") {
            Some(other) if !rules.may_know.contains(&other) => {
                complain(at, other, "dependencies point downwards only: move shared code into a lower crate");
            }
            None if rules.must_not_know.contains(&dependency) => {
                complain(at, dependency, "use it in the crate that is made for it, and pass the result in");
            }
            _ => {}
        }
    }
    if name == "core" {
        let start = file.text.find("[dependencies]").unwrap_or(0);
        let own = dependencies(section(&file.text, "[dependencies]"));
        for (at, other) in own.into_iter().filter(|(_, other)| !rules.must_not_know.contains(other)) {
            complain(start + at, other, "the core has no dependencies: write it, or pass it in");
        }
    }
    complaints
}

/// The name of a manifest's crate, without the prefix `posthaste-`.
fn package(file: &SourceFile) -> Option<&str> {
    if !file.path.ends_with("/Cargo.toml") {
        return None;
    }
    let line = section(&file.text, "[package]").lines().find(|line| line.starts_with("name"))?;
    let name = line.split('"').nth(1)?;
    Some(name.strip_prefix("posthaste-").unwrap_or(name))
}

/// The part of a manifest from a header to the next one.
fn section<'a>(manifest: &'a str, header: &str) -> &'a str {
    let Some(start) = manifest.find(header) else { return "" };
    let body = start + header.len();
    let end = manifest[body..].find("\n[").map_or(manifest.len(), |at| body + at);
    &manifest[start..end]
}

/// All dependencies of a manifest, of every kind, with their positions.
fn dependencies(manifest: &str) -> Vec<(usize, &str)> {
    let mut found = Vec::new();
    let mut in_list = false;
    for (at, line) in lines(manifest) {
        let text = line.trim();
        if let Some(header) = text.strip_prefix('[') {
            let header = header.trim_end_matches(']');
            in_list = header.ends_with("dependencies");
            // `[dependencies.name]` is one dependency with a table of its own.
            if let Some((_, name)) = header.rsplit_once("dependencies.") {
                found.push((at, name));
            }
        } else if in_list && !text.starts_with('#') {
            let name = text.split(['=', '.', ' ']).next().unwrap_or_default();
            if !name.is_empty() {
                found.push((at, name));
            }
        }
    }
    found
}

#[cfg(test)]
mod tests {
    use super::super::source::testing::check;
    use super::*;

    fn manifest(name: &str, dependencies: &str) -> String {
        format!("[package]\nname = \"posthaste-{name}\"\n\n{dependencies}\n")
    }

    #[test]
    fn dependencies_point_downwards_only() {
        let upwards =
            manifest("store", "[dependencies]\nposthaste-core.workspace = true\nposthaste-engine.workspace = true");
        check(check_arrows, "crates/store/Cargo.toml", &upwards, &[6]);
        let sideways = manifest("channels", "[dependencies.posthaste-store]\nworkspace = true");
        check(check_arrows, "crates/channels/Cargo.toml", &sideways, &[4]);
        let in_tests = manifest("engine", "[dev-dependencies]\nposthaste-testkit = { path = \"../testkit\" }");
        check(check_arrows, "crates/engine/Cargo.toml", &in_tests, &[5]);
        let down =
            manifest("engine", "[dependencies]\nposthaste-core.workspace = true\nposthaste-store.workspace = true");
        check(check_arrows, "crates/engine/Cargo.toml", &down, &[]);
    }

    #[test]
    fn a_crate_without_an_entry_is_reported() {
        check(check_arrows, "crates/utils/Cargo.toml", &manifest("utils", ""), &[1]);
    }

    #[test]
    fn a_forbidden_external_crate_is_reported() {
        let sql = manifest("server", "[dependencies]\nhttp.workspace = true\nrusqlite.workspace = true");
        check(check_arrows, "crates/server/Cargo.toml", &sql, &[6]);
        let clock = manifest("core", "[dev-dependencies]\nproptest.workspace = true\ntokio.workspace = true");
        check(check_arrows, "crates/core/Cargo.toml", &clock, &[6]);
    }

    #[test]
    fn a_dependency_of_the_core_is_reported_unless_it_is_for_tests() {
        let one =
            manifest("core", "[dependencies]\nbytes.workspace = true\n\n[dev-dependencies]\nproptest.workspace = true");
        check(check_arrows, "crates/core/Cargo.toml", &one, &[5]);
        let none = manifest("core", "[dependencies]\n\n[dev-dependencies]\nproptest.workspace = true");
        check(check_arrows, "crates/core/Cargo.toml", &none, &[]);
    }
}
