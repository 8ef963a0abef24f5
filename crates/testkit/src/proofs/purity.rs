//! The proof `purity`: `posthaste-core` has no dependencies, the compiler refuses `unsafe` in it, and nothing in it
//! reads a clock, makes random numbers or performs IO.
//!
//! The first two are read from the command line with which cargo calls the compiler. The last is a search for the words
//! of `xtask/core-must-not-know.txt`. As a control, each check is first given something that it must find.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use crate::prove::{CannotRun, Context, Figure, Findings, Options, count};

/// Runs the proof. There is no shorter form.
pub fn run(_: &Options) -> Findings {
    let root = root();
    let words = words(&root)?;
    controls(&root, &words)?;

    let compile = compile_command(&root)?;
    eprintln!("purity: built posthaste-core alone");
    let found = search_folder(&root.join("crates/core/src"), &words)?;
    found.iter().for_each(|line| eprintln!("purity: {line}"));
    fs::remove_dir_all(scratch(&root)).context(scratch(&root).display())?;

    Ok(vec![
        Figure::at_most("dependencies", count(dependencies(&compile)), "crates", 0.0),
        Figure::at_least("unsafe_forbidden", count(usize::from(forbids_unsafe(&compile))), "of 1", 1.0),
        Figure::at_most("impure_words", count(found.len()), "lines", 0.0),
    ])
}

fn root() -> PathBuf {
    let testkit = Path::new(env!("CARGO_MANIFEST_DIR"));
    testkit.ancestors().nth(2).expect("the testkit is two folders below the workspace").to_owned()
}

/// The folder for this proof's builds.
fn scratch(root: &Path) -> PathBuf {
    root.join("target/purity")
}

/// The controls: the search must find a clock, and the compiler must refuse `unsafe` code.
fn controls(root: &Path, words: &[String]) -> Result<(), CannotRun> {
    if search("let now = std::time::SystemTime::now();", words).is_empty() {
        return Err(CannotRun("the search does not find a clock in its control".to_owned()));
    }
    let folder = scratch(root);
    fs::create_dir_all(&folder).context(folder.display())?;
    let probe = folder.join("probe.rs");
    fs::write(&probe, "pub fn probe(place: *const u8) -> u8 { unsafe { *place } }\n").context(probe.display())?;
    let refused = output(
        Command::new("rustc")
            .args(["--edition=2024", "--crate-type=lib", "--emit=metadata", UNSAFE_FORBIDDEN, "--out-dir"])
            .args([&folder, &probe]),
    )?;
    let complaint = String::from_utf8_lossy(&refused.stderr);
    if refused.status.success() || !complaint.contains("unsafe") {
        return Err(CannotRun(format!("the compiler accepts `unsafe` in spite of {UNSAFE_FORBIDDEN}: {complaint}")));
    }
    Ok(())
}

const UNSAFE_FORBIDDEN: &str = "--forbid=unsafe_code";

/// Builds the core from scratch in a folder of its own, and returns the compiler's command line.
fn compile_command(root: &Path) -> Result<String, CannotRun> {
    let target = scratch(root).join("build");
    if target.exists() {
        fs::remove_dir_all(&target).context(target.display())?;
    }
    let built = output(
        Command::new("cargo")
            .current_dir(root)
            .args(["build", "--package", "posthaste-core", "--locked", "--offline", "--verbose", "--color=never"])
            .arg("--target-dir")
            .arg(&target),
    )?;
    let log = String::from_utf8_lossy(&built.stderr);
    if !built.status.success() {
        return Err(CannotRun(format!("posthaste-core does not build alone:\n{log}")));
    }
    let command = log.lines().find(|line| line.contains("--crate-name posthaste_core"));
    command.map(str::to_owned).context(format!("cargo did not print how it built the core:\n{log}"))
}

/// How many other crates the compiler's command line names.
fn dependencies(compile: &str) -> usize {
    compile.split_whitespace().filter(|word| word.starts_with("--extern")).count()
}

fn forbids_unsafe(compile: &str) -> bool {
    compile.split_whitespace().any(|word| word == UNSAFE_FORBIDDEN)
}

fn words(root: &Path) -> Result<Vec<String>, CannotRun> {
    let path = root.join("xtask/core-must-not-know.txt");
    let list = fs::read_to_string(&path).context(path.display())?;
    Ok(list
        .lines()
        .filter(|line| !line.starts_with('#'))
        .filter_map(|line| Some(line.split_whitespace().next()?.to_owned()))
        .collect())
}

fn search_folder(folder: &Path, words: &[String]) -> Result<Vec<String>, CannotRun> {
    let mut found = Vec::new();
    for entry in fs::read_dir(folder).context(folder.display())? {
        let path = entry.context(folder.display())?.path();
        if path.is_dir() {
            found.extend(search_folder(&path, words)?);
        } else if path.extension().is_some_and(|extension| extension == "rs") {
            let source = fs::read_to_string(&path).context(path.display())?;
            found.extend(search(&source, words).into_iter().map(|line| format!("{}:{line}", path.display())));
        }
    }
    Ok(found)
}

/// The lines of a source that have one of the words outside a comment.
fn search(source: &str, words: &[String]) -> Vec<String> {
    let mut found = Vec::new();
    for (index, line) in source.lines().enumerate() {
        let code = line.split("//").next().unwrap_or_default();
        found.extend(words.iter().filter(|word| holds(code, word)).map(|word| format!("{}: {word}", index + 1)));
    }
    found
}

/// Whether `code` holds `word` as a word, not as a part of a longer name.
fn holds(code: &str, word: &str) -> bool {
    let part_of_name = |c: char| c.is_alphanumeric() || c == '_';
    code.match_indices(word).any(|(at, _)| {
        let starts_inside = code[..at].ends_with(part_of_name);
        let goes_on = word.ends_with(part_of_name) && code[at + word.len()..].starts_with(part_of_name);
        !starts_inside && !goes_on
    })
}

fn output(command: &mut Command) -> Result<Output, CannotRun> {
    command.output().context(format!("cannot start {}", command.get_program().display()))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(source: &str, found: &[&str]) {
        let words = words(&root()).unwrap_or_else(|CannotRun(why)| panic!("{why}"));
        assert_eq!(search(source, &words), found, "in `{source}`");
    }

    #[test]
    fn search_finds_clocks_randomness_and_io() {
        check("use std::time::{Duration, SystemTime};", &["1: SystemTime"]);
        check("\nlet seen = HashMap::new();", &["2: HashMap::new"]);
        check("use std::{env, fs};", &["1: std::{"]);
        check("let home = std::env::var(\"HOME\");", &["1: std::env"]);
    }

    #[test]
    fn search_ignores_comments_and_longer_names() {
        check("// SystemTime stays outside", &[]);
        check("/// Instantly.\nfn instant_of(now: Timestamp) {}", &[]);
        check("#![forbid(unsafe_code)]", &[]);
        check("use std::time::Duration;", &[]);
    }

    #[test]
    fn compiler_command_line_shows_dependencies_and_lints() {
        let alone = "Running `rustc --crate-name posthaste_core src/lib.rs --forbid=unsafe_code -L dependency=deps`";
        assert_eq!((dependencies(alone), forbids_unsafe(alone)), (0, true));
        let with_dependency = "Running `rustc --crate-name posthaste_core src/lib.rs --extern serde=libserde.rmeta`";
        assert_eq!((dependencies(with_dependency), forbids_unsafe(with_dependency)), (1, false));
    }
}
