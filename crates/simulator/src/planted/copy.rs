//! The copy of the sources in which the bugs are planted.
//!
//! It is always at the same place in the target folder, and only files that differ are written, so that a second build
//! is incremental. It is built into the same target folder, so that common dependencies are built once. Its packages
//! have another version, so that cargo never confuses them with those of the workspace.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::Command;

use super::{patch, read};
use posthaste_prove::{CannotRun, Context};

/// The files and folders that are copied.
const PARTS: [&str; 5] = ["crates", "xtask", "Cargo.toml", "Cargo.lock", ".cargo"];
/// The suffix of the version of every package of the copy.
const MARK: &str = "-planted";

/// A copy with every bug in it, switched off.
pub(super) struct Replica {
    root: PathBuf,
    target: PathBuf,
}

impl Replica {
    /// Makes or updates the copy.
    pub(super) fn make(workspace: &Path, target: &Path, planted: &Path, bugs: &[&str]) -> Result<Self, CannotRun> {
        let copy = Self { root: target.join("planted"), target: target.to_owned() };
        let mut files: BTreeMap<PathBuf, Vec<u8>> = BTreeMap::new();
        for part in PARTS {
            gather(workspace, Path::new(part), &mut files)?;
        }
        for (path, text) in patch::apply(workspace, &patch::read_all(planted, bugs)?)? {
            files.insert(path, text.into_bytes());
        }
        files.insert("crates/core/src/planted.rs".into(), read(&planted.join("switch.rs"))?.into_bytes());
        files.insert("crates/simulator/src/bin/hunt.rs".into(), read(&planted.join("hunt.rs"))?.into_bytes());
        for manifest in ["Cargo.toml", "Cargo.lock"] {
            let text = read(&workspace.join(manifest))?;
            files.insert(manifest.into(), marked(manifest, &text)?.into_bytes());
        }
        copy.write(&files)?;
        Ok(copy)
    }

    /// Builds the program `hunt`. Returns its path.
    pub(super) fn build(&self) -> Result<PathBuf, CannotRun> {
        let built = Command::new("cargo")
            .current_dir(&self.root)
            .args(["build", "--release", "--locked", "--offline", "--package=posthaste-simulator", "--bin=hunt"])
            .arg("--target-dir")
            .arg(&self.target)
            .output()
            .context("cannot start cargo")?;
        if built.status.success() {
            return Ok(self.target.join("release/hunt"));
        }
        Err(CannotRun(format!("the copy does not build:\n{}", String::from_utf8_lossy(&built.stderr))))
    }

    /// Writes files that differ, and removes those that are not in the list.
    fn write(&self, files: &BTreeMap<PathBuf, Vec<u8>>) -> Result<(), CannotRun> {
        let mut existing = BTreeMap::new();
        if self.root.exists() {
            gather(&self.root, Path::new(""), &mut existing)?;
        }
        for path in existing.keys().filter(|path| !files.contains_key(*path)) {
            let path = self.root.join(path);
            std::fs::remove_file(&path).context(format!("cannot remove {}", path.display()))?;
        }
        for (path, bytes) in files.iter().filter(|(path, bytes)| existing.get(*path) != Some(bytes)) {
            let path = self.root.join(path);
            let folder = path.parent().expect("a file lies in a folder");
            std::fs::create_dir_all(folder).context(format!("cannot make {}", folder.display()))?;
            std::fs::write(&path, bytes).context(format!("cannot write {}", path.display()))?;
        }
        Ok(())
    }
}

/// Reads all files of a folder, or a single file, by their paths below `root`. Missing ones are left out.
fn gather(root: &Path, path: &Path, files: &mut BTreeMap<PathBuf, Vec<u8>>) -> Result<(), CannotRun> {
    let whole = root.join(path);
    if whole.is_dir() {
        for entry in std::fs::read_dir(&whole).context(format!("cannot read {}", whole.display()))? {
            let name = entry.context(format!("cannot read {}", whole.display()))?.file_name();
            gather(root, &path.join(name), files)?;
        }
    } else if whole.is_file() {
        let bytes = std::fs::read(&whole).context(format!("cannot read {}", whole.display()))?;
        files.insert(path.to_owned(), bytes);
    }
    Ok(())
}

/// A manifest or lock file in which the workspace's packages have the marked version.
fn marked(manifest: &str, text: &str) -> Result<String, CannotRun> {
    let line = format!("version = \"{}\"", env!("CARGO_PKG_VERSION"));
    let other = format!("version = \"{}{MARK}\"", env!("CARGO_PKG_VERSION"));
    let ours = |block: &str| !block.contains("source = ");
    let blocks: Vec<String> = text
        .split("\n\n")
        .map(|block| if ours(block) { block.replace(&line, &other) } else { block.to_owned() })
        .collect();
    let marked = blocks.join("\n\n");
    if marked == text {
        return Err(CannotRun(format!("{manifest} has no line `{line}` of a package of the workspace")));
    }
    Ok(marked)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_workspace_packages_are_marked() {
        let version = env!("CARGO_PKG_VERSION");
        let lock = format!(
            "[[package]]\nname = \"ours\"\nversion = \"{version}\"\n\n[[package]]\nname = \"theirs\"\nversion = \"{version}\"\nsource = \"somewhere\"\n"
        );
        let marked = marked("Cargo.lock", &lock).unwrap_or_else(|CannotRun(why)| panic!("{why}"));
        assert_eq!(marked.matches("-planted").count(), 1);
        assert!(marked.contains(&format!("name = \"ours\"\nversion = \"{version}-planted\"")));
    }

    #[test]
    fn second_run_writes_nothing_and_removes_missing_files() {
        let folder = tempfile::tempdir().expect("a temporary folder can be made");
        let copy = Replica { root: folder.path().join("planted"), target: folder.path().to_owned() };
        let file = |name: &str| (PathBuf::from(name), b"text".to_vec());
        let written = |files: &[&str]| {
            copy.write(&files.iter().map(|name| file(name)).collect()).unwrap_or_else(|CannotRun(why)| panic!("{why}"));
        };
        written(&["a/one", "two"]);
        let read_only = copy.root.join("two");
        let mut permissions = std::fs::metadata(&read_only).expect("it was written").permissions();
        permissions.set_readonly(true);
        std::fs::set_permissions(&read_only, permissions).expect("the test owns the file");
        let before = std::fs::metadata(&read_only).expect("it was written").modified().expect("a file has a time");
        written(&["two"]);
        assert!(!copy.root.join("a/one").exists());
        let after = std::fs::metadata(&read_only).expect("it is still there").modified().expect("a file has a time");
        assert_eq!(after, before);
    }
}
