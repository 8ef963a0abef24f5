//! Which crate may know which: arrows point downwards only.
//!
//! `core, crypto ← store, channels ← engine ← server ← cli`; `testkit → engine and below`;
//! `cli → testkit` for `demo`, `bench` and `simulate`; `disk → testkit` for its proofs; `xtask → core`.

use super::source::{Complaint, SourceFile};

/// What a crate may know, and what must stay out of it.
struct Room {
    name: &'static str,
    may_know: &'static [&'static str],
    must_not_know: &'static [&'static str],
}

const ROOMS: &[Room] = &[
    Room {
        name: "core",
        may_know: &[],
        must_not_know: &["tokio", "serde", "rand", "fastrand", "getrandom", "chrono", "jiff", "http"],
    },
    Room { name: "crypto", may_know: &[], must_not_know: &["tokio", "anyhow", "clap"] },
    Room { name: "store", may_know: &["core", "crypto"], must_not_know: &["http", "hyper", "axum", "anyhow", "clap"] },
    Room {
        name: "channels",
        may_know: &["core", "crypto"],
        must_not_know: &["tokio", "hyper", "rusqlite", "anyhow", "clap"],
    },
    Room {
        name: "engine",
        may_know: &["core", "crypto", "store", "channels"],
        must_not_know: &["axum", "anyhow", "clap", "rusqlite"],
    },
    Room {
        name: "server",
        may_know: &["core", "crypto", "store", "channels", "engine"],
        must_not_know: &["rusqlite", "anyhow", "clap"],
    },
    Room {
        name: "testkit",
        may_know: &["core", "crypto", "store", "channels", "engine"],
        must_not_know: &["axum", "anyhow", "clap"],
    },
    // Whoever links it gets its VFS as the default: nobody may know it.
    Room {
        name: "disk",
        may_know: &["core", "crypto", "store", "testkit"],
        must_not_know: &["axum", "anyhow", "clap"],
    },
    Room {
        name: "cli",
        may_know: &["core", "crypto", "store", "channels", "engine", "server", "testkit"],
        must_not_know: &["rusqlite"],
    },
    Room { name: "xtask", may_know: &["core"], must_not_know: &[] },
];

/// A manifest names only crates below its own.
pub(super) fn check_arrows(file: &SourceFile) -> Vec<Complaint> {
    let Some(name) = package(file) else { return Vec::new() };
    let Some(room) = ROOMS.iter().find(|room| room.name == name) else {
        let what = format!("the crate {name} has no place among the others");
        return vec![file.complaint(0, what, "say what it may know in xtask/src/tidy/arrows.rs")];
    };
    dependencies(&file.text)
        .into_iter()
        .filter_map(|(at, dependency)| Some((at, dependency.strip_prefix("posthaste-")?)))
        .filter(|(_, other)| !room.may_know.contains(other))
        .map(|(at, other)| {
            let what = format!("{name} must not know {other}");
            file.complaint(at, what, "arrows point downwards only: move what is shared into a lower crate")
        })
        .collect()
}

/// A manifest names no foreign crate that is another room's business; the core's names none at all.
pub(super) fn check_foreign_crates(file: &SourceFile) -> Vec<Complaint> {
    let Some(room) = package(file).and_then(|name| ROOMS.iter().find(|room| room.name == name)) else {
        return Vec::new();
    };
    let mut complaints: Vec<_> = dependencies(&file.text)
        .into_iter()
        .filter(|(_, dependency)| room.must_not_know.contains(dependency))
        .map(|(at, dependency)| {
            let what = format!("{} must not know {dependency}", room.name);
            file.complaint(at, what, "do this in the crate whose purpose it is, and pass the result in")
        })
        .collect();
    if room.name == "core" {
        let own = dependencies(section(&file.text, "[dependencies]"));
        let start = file.text.find("[dependencies]").unwrap_or(0);
        complaints.extend(own.into_iter().filter(|(_, name)| !room.must_not_know.contains(name)).map(|(at, name)| {
            file.complaint(
                start + at,
                format!("core depends on {name}"),
                "the core has no dependencies: write it, or pass it in",
            )
        }));
    }
    complaints
}

/// The crate a manifest is for, without its prefix.
fn package(file: &SourceFile) -> Option<&str> {
    if !file.path.ends_with("/Cargo.toml") {
        return None;
    }
    let line = section(&file.text, "[package]").lines().find(|line| line.starts_with("name"))?;
    let name = line.split('"').nth(1)?;
    Some(name.strip_prefix("posthaste-").unwrap_or(name))
}

/// From a header to the next one.
fn section<'a>(manifest: &'a str, header: &str) -> &'a str {
    let Some(start) = manifest.find(header) else { return "" };
    let body = start + header.len();
    let end = manifest[body..].find("\n[").map_or(manifest.len(), |at| body + at);
    &manifest[start..end]
}

/// Everything a manifest depends on, of whatever kind, and where it says so.
fn dependencies(manifest: &str) -> Vec<(usize, &str)> {
    let mut found = Vec::new();
    let mut in_list = false;
    let mut at = 0;
    for line in manifest.split_inclusive('\n') {
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
        at += line.len();
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
    fn an_arrow_upwards_is_caught() {
        let upwards =
            manifest("store", "[dependencies]\nposthaste-core.workspace = true\nposthaste-engine.workspace = true");
        check(check_arrows, "crates/store/Cargo.toml", &upwards, &[6]);
        let sideways = manifest("channels", "[dependencies.posthaste-store]\nworkspace = true");
        check(check_arrows, "crates/channels/Cargo.toml", &sideways, &[4]);
        let in_tests = manifest("engine", "[dev-dependencies]\nposthaste-testkit = { path = \"../testkit\" }");
        check(check_arrows, "crates/engine/Cargo.toml", &in_tests, &[5]);
    }

    #[test]
    fn an_arrow_downwards_is_fine() {
        let down =
            manifest("engine", "[dependencies]\nposthaste-core.workspace = true\nposthaste-store.workspace = true");
        check(check_arrows, "crates/engine/Cargo.toml", &down, &[]);
    }

    #[test]
    fn a_crate_without_a_place_is_caught() {
        check(check_arrows, "crates/utils/Cargo.toml", &manifest("utils", ""), &[1]);
    }

    #[test]
    fn another_rooms_business_is_caught() {
        let sql = manifest("server", "[dependencies]\nhttp.workspace = true\nrusqlite.workspace = true");
        check(check_foreign_crates, "crates/server/Cargo.toml", &sql, &[6]);
        let clock = manifest("core", "[dev-dependencies]\nproptest.workspace = true\ntokio.workspace = true");
        check(check_foreign_crates, "crates/core/Cargo.toml", &clock, &[6]);
    }

    #[test]
    fn the_core_depends_on_nothing_but_its_tests_may() {
        let one =
            manifest("core", "[dependencies]\nbytes.workspace = true\n\n[dev-dependencies]\nproptest.workspace = true");
        check(check_foreign_crates, "crates/core/Cargo.toml", &one, &[5]);
        let none = manifest("core", "[dependencies]\n\n[dev-dependencies]\nproptest.workspace = true");
        check(check_foreign_crates, "crates/core/Cargo.toml", &none, &[]);
    }
}
