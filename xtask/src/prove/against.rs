//! Builds the server of another commit, for `prove bench --against COMMIT`.
//!
//! The commit's files go into a folder beside the build, with a git index of its own: neither your checkout nor the
//! repository's list of worktrees changes. The folder and its build are kept, and git rewrites only the files that
//! differ, so that the next comparison compiles only the crates that changed.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, bail, ensure};

/// Set for this process by `cargo run` from this tree's `.cargo/config.toml`. The other tree has its own, which an
/// environment variable would override.
const FROM_OUR_CONFIG: &[&str] = &["LIBSQLITE3_FLAGS"];

/// A commit to compare with, and the folder in which it is checked out and built.
pub(super) struct OtherCommit<'a> {
    root: &'a Path,
    folder: PathBuf,
    /// The commit's full hash.
    commit: String,
    /// The index of the argument that names it.
    place: usize,
}

/// The commit behind `--against`, if there is one.
pub(super) fn find<'a>(root: &'a Path, target: &Path, args: &[String]) -> Result<Option<OtherCommit<'a>>> {
    let Some(place) = place_of_commit(args)? else { return Ok(None) };
    let commit = full_name(root, &args[place])?;
    if !git(root).args(["diff", "--quiet", "HEAD"]).status().context("cannot start git")?.success() {
        eprintln!("prove: this tree has changes that are not committed; they are measured too");
    }
    Ok(Some(OtherCommit { root, folder: target.join("prove-against"), commit, place }))
}

fn place_of_commit(args: &[String]) -> Result<Option<usize>> {
    let Some(flag) = args.iter().position(|arg| arg == "--against") else { return Ok(None) };
    ensure!(args.iter().any(|arg| arg == "bench"), "--against is for the proof bench");
    ensure!(args.get(flag + 1).is_some_and(|commit| !commit.starts_with('-')), "--against wants a commit");
    Ok(Some(flag + 1))
}

fn full_name(root: &Path, commit: &str) -> Result<String> {
    let mut parse = git(root);
    parse.args(["rev-parse", "--verify", "--quiet", "--end-of-options", &format!("{commit}^{{commit}}")]);
    let parsed = parse.output().context("cannot start git")?;
    ensure!(
        parsed.status.success(),
        "there is no commit {commit} in {}; a shallow clone has only the newest ones",
        root.display()
    );
    Ok(String::from_utf8(parsed.stdout).context("a commit's name is not text")?.trim().to_owned())
}

impl OtherCommit<'_> {
    /// Builds the commit's server, and returns the arguments with the path of that program in place of the commit.
    pub(super) fn built_into(&self, args: &[String]) -> Result<Vec<String>> {
        eprintln!("prove: building {}; the first build takes some minutes", self.commit);
        let program = self.build()?;
        let mut args = args.to_vec();
        args[self.place] = program.to_str().context("the target folder's name is not UTF-8")?.to_owned();
        Ok(args)
    }

    /// Checks the commit's files out into the folder, and removes files of earlier commits.
    fn check_out(&self) -> Result<PathBuf> {
        let (tree, commit) = (self.folder.join("tree"), &self.commit);
        fs::create_dir_all(&tree).with_context(|| format!("cannot make {}", tree.display()))?;
        let mut read = git(self.root);
        read.env("GIT_INDEX_FILE", self.folder.join("index")).env("GIT_WORK_TREE", &tree);
        let read = read.args(["read-tree", "--reset", "-u", commit]).output().context("cannot start git")?;
        let stderr = String::from_utf8_lossy(&read.stderr);
        ensure!(read.status.success(), "git cannot check {commit} out into {}: {}", tree.display(), stderr.trim());
        Ok(tree)
    }

    fn build(&self) -> Result<PathBuf> {
        let (tree, target) = (self.check_out()?, self.folder.join("target"));
        let mut build = super::build_command(&tree, &["posthaste-cli"]);
        build.args(["--locked", "--target-dir"]).arg(&target);
        for variable in FROM_OUR_CONFIG {
            build.env_remove(variable);
        }
        if !build.status().context("cannot start cargo")?.success() {
            bail!("commit {} cannot be built; its files are in {}", self.commit, tree.display());
        }
        Ok(target.join("release").join("posthaste"))
    }
}

fn git(root: &Path) -> Command {
    let mut git = Command::new("git");
    git.arg("-C").arg(root);
    git
}

#[cfg(test)]
mod tests {
    use super::*;

    fn args(line: &str) -> Vec<String> {
        line.split_whitespace().map(str::to_owned).collect()
    }

    /// A repository with two commits. The second changes `kept`, drops `gone` and adds `new/file`.
    fn repository() -> (tempfile::TempDir, String, String) {
        let folder = tempfile::tempdir().expect("a temporary folder");
        let root = folder.path();
        let git = |line: &str| {
            let mut git = git(root);
            git.args(["-c", "user.name=test", "-c", "user.email=test@example.com", "-c", "commit.gpgsign=false"]);
            let ran = git.args(line.split(' ')).output().expect("git runs");
            assert!(ran.status.success(), "git {line}: {}", String::from_utf8_lossy(&ran.stderr));
            String::from_utf8(ran.stdout).expect("text").trim().to_owned()
        };
        let write = |name: &str, text: &str| fs::write(root.join(name), text).expect("a file is written");
        git("init --quiet");
        write("kept", "first");
        write("gone", "first");
        git("add .");
        git("commit --quiet --message=first");
        let first = git("rev-parse HEAD");
        fs::create_dir(root.join("new")).expect("a folder is made");
        write("kept", "second");
        write("new/file", "second");
        git("rm --quiet gone");
        git("add .");
        git("commit --quiet --message=second");
        let second = git("rev-parse HEAD");
        (folder, first, second)
    }

    fn other<'a>(root: &'a Path, folder: PathBuf, commit: &str) -> OtherCommit<'a> {
        OtherCommit { root, folder, commit: commit.to_owned(), place: 0 }
    }

    #[test]
    fn a_command_line_without_against_needs_no_repository() {
        let nowhere = Path::new("nowhere");
        assert!(find(nowhere, nowhere, &args("bench --quick")).expect("nothing is looked up").is_none());
    }

    #[test]
    fn against_is_refused_without_a_commit_and_for_other_proofs() {
        let complaint = |line: &str| place_of_commit(&args(line)).expect_err("it is refused").to_string();
        assert_eq!(complaint("bench --against"), "--against wants a commit");
        assert_eq!(complaint("bench --against --json"), "--against wants a commit");
        assert_eq!(complaint("kill9 --against HEAD"), "--against is for the proof bench");
        assert_eq!(place_of_commit(&args("bench --json --against HEAD~5")).expect("a commit"), Some(3));
    }

    #[test]
    fn an_unknown_commit_is_named_in_the_error() {
        let (repository, _, second) = repository();
        let error = full_name(repository.path(), "v9").expect_err("there is no such commit").to_string();
        assert!(error.starts_with("there is no commit v9 in "), "{error}");
        assert_eq!(full_name(repository.path(), "HEAD").expect("HEAD is a commit"), second);
    }

    #[test]
    fn a_checked_out_commit_leaves_the_checkout_and_its_index_alone() {
        let (repository, first, second) = repository();
        let outside = tempfile::tempdir().expect("a temporary folder");
        let check_out = |commit: &str| {
            let other = other(repository.path(), outside.path().join("against"), commit);
            let tree = other.check_out().expect("the commit is there");
            ["kept", "gone", "new/file"].map(|name| fs::read_to_string(tree.join(name)).ok())
        };
        fs::write(repository.path().join("kept"), "changed").expect("a file is written");
        let text = |text: &str| Some(text.to_owned());
        assert_eq!(check_out(&first), [text("first"), text("first"), None]);
        assert_eq!(check_out(&second), [text("second"), None, text("second")]);

        let status = git(repository.path()).args(["status", "--porcelain"]).output().expect("git runs");
        assert_eq!(String::from_utf8_lossy(&status.stdout), " M kept\n");
        let worktrees = git(repository.path()).args(["worktree", "list"]).output().expect("git runs");
        assert_eq!(String::from_utf8_lossy(&worktrees.stdout).lines().count(), 1);
    }

    #[test]
    fn files_of_a_commit_that_was_checked_out_before_are_not_written_again() {
        let (repository, first, _) = repository();
        let other = other(repository.path(), repository.path().join("target"), &first);
        let written = || {
            let kept = other.check_out().expect("the commit is there").join("kept");
            fs::metadata(kept).and_then(|file| file.modified()).expect("the file is there")
        };
        assert_eq!(written(), written());
    }
}
