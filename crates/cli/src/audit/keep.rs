//! What somebody kept elsewhere: checkpoints and the public key, as `audit checkpoint` printed them.
//!
//! One file may hold any number of both; empty lines and those that begin with `#` are passed over.

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail, ensure};
use posthaste_crypto::checkpoint::{PublicKey, claimed};

const KEY: &str = "posthaste public key ";

/// The line a public key is exported as.
pub(super) fn key_line(key: &PublicKey) -> String {
    format!("{KEY}{key}")
}

/// The checkpoints in files. A file without any is a mistake, and so is a line that is none.
pub(super) fn checkpoints(files: &[PathBuf]) -> Result<Vec<String>> {
    let mut found = Vec::new();
    for file in files {
        let before = found.len();
        for (number, line) in lines(file)? {
            if line.starts_with(KEY) {
                continue;
            }
            if claimed(&line).is_none() {
                bail!("line {number} of {} is no checkpoint; give lines as they were exported", file.display());
            }
            found.push(line);
        }
        ensure!(found.len() > before, "{} has no checkpoint", file.display());
    }
    Ok(found)
}

/// A public key as it was given, or the only one in a file.
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
        _ => bail!("{given} has {} public keys; give the one of this store", keys.len()),
    }
}

/// What a file says, with the numbers of its lines.
fn lines(file: &Path) -> Result<Vec<(usize, String)>> {
    let text = fs::read_to_string(file).with_context(|| format!("cannot read {}", file.display()))?;
    let told = text.lines().map(str::trim).enumerate().filter(|(_, line)| !line.is_empty() && !line.starts_with('#'));
    Ok(told.map(|(number, line)| (number + 1, line.to_owned())).collect())
}
