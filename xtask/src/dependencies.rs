//! `cargo xtask dependencies`: which crates may enter the tree.
//!
//! Judged from what cargo says of the tree, for the targets we build for and with every feature: licences, crates we
//! refuse, and where packages come from. Security advisories are not judged: their database has to be fetched.

use std::collections::BTreeSet;
use std::path::Path;
use std::process::Command;

use anyhow::{Context, Result, bail, ensure};
use serde_json::Value;
use spdx::{Expression, ParseMode};

const TARGETS: [&str; 3] = ["x86_64-unknown-linux-gnu", "aarch64-unknown-linux-gnu", "x86_64-unknown-linux-musl"];

/// Licences that ask for no more than their notice. Adding one is a decision: say why here.
const LICENCES: &[&str] = &[
    "Apache-2.0",
    "Apache-2.0 WITH LLVM-exception",
    "BSD-3-Clause",
    "ISC",
    "MIT",
    // The ICU data that `url` needs to read host names.
    "Unicode-3.0",
    "Zlib",
];

const REFUSED: &[(&str, &str)] = &[
    ("ring", "one crypto provider for everything: aws-lc-rs (docs/adr/0004)"),
    ("openssl-sys", "one crypto provider for everything: aws-lc-rs (docs/adr/0004)"),
    ("native-tls", "TLS is rustls; we need its verifier hooks"),
    ("rsa", "carries a timing side channel without a fix; aws-lc-rs signs RSA"),
    ("rustls-pemfile", "unmaintained; rustls-pki-types reads PEM"),
    ("reqwest", "the connector is the only way out of the process"),
    ("chrono", "time zones are jiff's"),
];

/// Cargo's default registry, as `Cargo.lock` names it. Put together here: `tidy` refuses hosts of registries in files.
const REGISTRY: &str = concat!("registry+https://github.com/rust-lang/crates", ".io-index");

/// A crate with its version, as both commands write them.
type Package = (String, String);

/// Fails when a crate in the tree breaks a rule, and lists every broken one.
pub(crate) fn check(root: &Path) -> Result<()> {
    let used = used(root)?;
    let metadata: Value = serde_json::from_str(&cargo(root, &["metadata", "--format-version=1", "--locked"])?)?;
    let complaints = complaints(&metadata, &used)?;
    complaints.iter().for_each(|complaint| println!("{complaint}"));
    println!("dependencies: {} crates; in two versions: {}", used.len(), in_two_versions(&used).join(", "));
    ensure!(complaints.is_empty(), "{} complaints", complaints.len());
    Ok(())
}

/// The packages that a build for one of the targets uses. `cargo metadata` lists more: a crate that an optional feature
/// of another one names stays in its answer when no build uses it.
fn used(root: &Path) -> Result<BTreeSet<Package>> {
    let mut used = BTreeSet::new();
    for target in TARGETS {
        let target = format!("--target={target}");
        let args = ["tree", "--workspace", "--all-features", "--locked", "--prefix=none", "--format={p}", &target];
        used.extend(cargo(root, &args)?.lines().filter_map(package));
    }
    ensure!(!used.is_empty(), "cargo tree listed no package");
    Ok(used)
}

/// `serde v1.0.229 (proc-macro)` is `serde` in version `1.0.229`.
fn package(line: &str) -> Option<Package> {
    let mut words = line.split_whitespace();
    Some((words.next()?.to_owned(), words.next()?.strip_prefix('v')?.to_owned()))
}

fn cargo(root: &Path, args: &[&str]) -> Result<String> {
    let output = Command::new("cargo").current_dir(root).args(args).output().context("cannot start cargo")?;
    if !output.status.success() {
        bail!("cargo {} failed: {}", args[0], String::from_utf8_lossy(&output.stderr).trim());
    }
    String::from_utf8(output.stdout).context("cargo did not print text")
}

fn complaints(metadata: &Value, used: &BTreeSet<Package>) -> Result<Vec<String>> {
    let licences = LICENCES.iter().map(|text| spdx::Licensee::parse(text)).collect::<Result<Vec<_>, _>>()?;
    let mut complaints = Vec::new();
    for package in metadata["packages"].as_array().into_iter().flatten() {
        let text = |field: &str| package[field].as_str().unwrap_or_default();
        let (name, version, licence) = (text("name"), text("version"), text("license"));
        if !used.contains(&(name.to_owned(), version.to_owned())) {
            continue;
        }
        let at = format!("{name} {version}");
        let is_free = Expression::parse_mode(licence, ParseMode::LAX)
            .is_ok_and(|licence| licence.evaluate(|wanted| licences.iter().any(|allowed| allowed.satisfies(wanted))));
        if !is_free {
            let way_out = "take another crate, or allow it in xtask/src/dependencies.rs";
            complaints.push(format!("{at}: licence {licence:?}: {way_out}"));
        }
        if let Some((_, reason)) = REFUSED.iter().find(|(refused, _)| *refused == name) {
            complaints.push(format!("{at}: refused: {reason}; take another crate"));
        }
        match package["source"].as_str() {
            // A package of this workspace.
            None => complaints.extend(wildcards(package).map(|of| format!("{at}: any version of {of}: name one"))),
            Some(REGISTRY) => {}
            Some(other) => complaints.push(format!("{at}: comes from {other}: take it from the default registry")),
        }
    }
    Ok(complaints)
}

fn wildcards(package: &Value) -> impl Iterator<Item = &str> {
    let dependencies = package["dependencies"].as_array().into_iter().flatten();
    dependencies.filter(|one| one["req"] == "*" && one["path"].is_null()).filter_map(|one| one["name"].as_str())
}

/// Crates that are in the tree more than once: they cost build time, and are rarely ours to mend.
fn in_two_versions(used: &BTreeSet<Package>) -> Vec<&str> {
    let names: Vec<&str> = used.iter().map(|(name, _)| name.as_str()).collect();
    let mut twice: Vec<&str> = names.windows(2).filter(|pair| pair[0] == pair[1]).map(|pair| pair[0]).collect();
    twice.dedup();
    twice
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn check(package: &Value, expected: &[&str]) {
        let metadata = json!({ "packages": [package] });
        let text = |field: &str| package[field].as_str().expect("a text").to_owned();
        let complaints = complaints(&metadata, &BTreeSet::from([(text("name"), text("version"))])).expect("licences");
        assert_eq!(complaints.len(), expected.len(), "{complaints:?}");
        for (complaint, expected) in complaints.iter().zip(expected) {
            assert!(complaint.contains(expected), "{complaint}");
        }
    }

    fn package(name: &str, licence: &str, source: &str) -> Value {
        json!({ "id": name, "name": name, "version": "1.0.0", "license": licence, "source": source })
    }

    #[test]
    fn permissive_crates_from_the_default_registry_pass() {
        for licence in ["MIT", "MIT OR Apache-2.0", "MIT/Apache-2.0", "(MIT OR GPL-3.0) AND Unicode-3.0"] {
            check(&package("a", licence, REGISTRY), &[]);
        }
    }

    #[test]
    fn crates_that_break_a_rule_are_refused() {
        check(&package("a", "GPL-3.0-only", REGISTRY), &["licence"]);
        check(&package("a", "", REGISTRY), &["licence"]);
        check(&package("a", "MIT AND AGPL-3.0-only", REGISTRY), &["licence"]);
        check(&package("ring", "ISC", REGISTRY), &["one crypto provider"]);
        check(&package("a", "MIT", "git+https://example.com/a"), &["comes from git+https"]);
    }

    #[test]
    fn own_packages_name_versions_of_what_they_depend_on() {
        let own = |req: &str, path: Value| {
            let dependency = json!({ "name": "b", "req": req, "path": path });
            json!({ "id": "own", "name": "own", "version": "0.1.0", "license": "Apache-2.0", "source": null,
                    "dependencies": [dependency] })
        };
        check(&own("^1", Value::Null), &[]);
        check(&own("*", json!("../b")), &[]);
        check(&own("*", Value::Null), &["any version of b"]);
    }

    #[test]
    fn crates_that_no_target_uses_are_not_judged() {
        let metadata = json!({ "packages": [package("a", "GPL-3.0-only", REGISTRY)] });
        assert_eq!(complaints(&metadata, &BTreeSet::new()).expect("licences"), Vec::<String>::new());
    }

    #[test]
    fn crates_in_two_versions_are_named_once() {
        let lines = ["a v1.0.0", "b v1.0.0 (proc-macro)", "b v2.0.0", "b v3.0.0 (*)", "c v0.1.0 (/src/c)"];
        assert_eq!(in_two_versions(&lines.into_iter().filter_map(super::package).collect()), ["b"]);
    }
}
