//! Reads checkpoints and public keys that were kept elsewhere, as `audit checkpoint` printed them.
//!
//! A file can have any number of both; empty lines and lines that begin with `#` are skipped.

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail, ensure};
use posthaste_crypto::checkpoint::{PublicKey, claimed};

const KEY: &str = "posthaste public key ";

pub(super) fn key_line(key: &PublicKey) -> String {
    format!("{KEY}{key}")
}

/// Reads the checkpoints in files. Fails on a file without any, and on a line that is neither checkpoint nor key.
pub(super) fn checkpoints(files: &[PathBuf]) -> Result<Vec<String>> {
    let mut found = Vec::new();
    for file in files {
        let before = found.len();
        for (number, line) in lines(file)? {
            if line.starts_with(KEY) {
                continue;
            }
            if claimed(&line).is_none() {
                bail!("line {number} of {} is no checkpoint; use the lines as they were printed", file.display());
            }
            found.push(line);
        }
        ensure!(found.len() > before, "{} has no checkpoint", file.display());
    }
    Ok(found)
}

/// Reads a public key from an argument: the key itself, or a file with exactly one.
pub(super) fn public_key(given: &str) -> Result<PublicKey> {
    if let Some(key) = PublicKey::parse(given.strip_prefix(KEY).unwrap_or(given)) {
        return Ok(key);
    }
    let lines = lines(Path::new(given)).context("--public-key is neither a key nor a file that can be read")?;
    let mut keys: Vec<PublicKey> = Vec::new();
    for (_, line) in lines {
        let key = PublicKey::parse(line.strip_prefix(KEY).unwrap_or(&line));
        keys.extend(key.filter(|key| !keys.contains(key)));
    }
    match keys[..] {
        [key] => Ok(key),
        [] => bail!("{given} has no public key; it is the line `{KEY}…` of `posthaste audit checkpoint`"),
        _ => bail!("{given} has {} public keys; keep only the one of this store", keys.len()),
    }
}

/// The lines of a file with their numbers, without empty lines and comments.
fn lines(file: &Path) -> Result<Vec<(usize, String)>> {
    let text = fs::read_to_string(file).with_context(|| format!("cannot read {}", file.display()))?;
    let kept = text.lines().map(str::trim).enumerate().filter(|(_, line)| !line.is_empty() && !line.starts_with('#'));
    Ok(kept.map(|(number, line)| (number + 1, line.to_owned())).collect())
}
