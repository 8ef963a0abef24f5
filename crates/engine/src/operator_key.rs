//! The first operator key: made with the store, and written to a file that only the owner may read.

use std::fs::{self, File, OpenOptions};
use std::io::{self, ErrorKind, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

use posthaste_crypto::api_key::{ApiKey, KeyClass};
use posthaste_store::{ListOrder, Store, StoreError};

use crate::{Clock, Engine, NewKey, NotFiled};

const FILE: &str = "operator.key";

/// Why the first operator key could not be made.
#[derive(Debug, thiserror::Error)]
pub enum NoOperatorKey {
    #[error("cannot keep the first operator key in {}: {error}", path.display())]
    File { path: PathBuf, error: io::Error },
    #[error("the first operator key could not be stored")]
    NotFiled(#[from] NotFiled),
    #[error("the store could not be read")]
    Store(#[from] StoreError),
}

impl<S: Store, C: Clock> Engine<S, C> {
    /// Makes an operator key if there is none, and returns the path of its file.
    ///
    /// The file is written first. A key that was stored without its file could never be used, and no other operator
    /// key could be made. A file whose key is not stored yet is used by the next start.
    pub async fn first_operator_key(&self, folder: &Path) -> Result<Option<PathBuf>, NoOperatorKey> {
        if !self.keys(None, ListOrder::OldestFirst, None, 1).await?.is_empty() {
            return Ok(None);
        }
        let path = folder.join(FILE);
        let key = match read(&path).and_then(|found| found.map_or_else(|| make(&path), Ok)) {
            Ok(key) => key,
            Err(error) => return Err(NoOperatorKey::File { path, error }),
        };
        let description = Some(format!("the first one, written to {FILE}"));
        self.file_key(key, NewKey { tenant: None, scopes: None, expires: None, description }, None, None).await?;
        Ok(Some(path))
    }
}

/// The key in the file; `None` if the file is missing or incomplete.
fn read(path: &Path) -> io::Result<Option<ApiKey>> {
    match fs::read_to_string(path) {
        Ok(text) => Ok(ApiKey::parse(text.trim()).ok().filter(|key| key.class() == KeyClass::Operator)),
        Err(error) if error.kind() == ErrorKind::NotFound => Ok(None),
        Err(error) => Err(error),
    }
}

fn make(path: &Path) -> io::Result<ApiKey> {
    let key = ApiKey::generate(KeyClass::Operator);
    match fs::remove_file(path) {
        Err(error) if error.kind() != ErrorKind::NotFound => return Err(error),
        _ => {}
    }
    let mut file = OpenOptions::new().write(true).create_new(true).mode(0o600).open(path)?;
    file.write_all(key.reveal().as_bytes())?;
    file.write_all(b"\n")?;
    file.sync_all()?;
    path.parent().map_or(Ok(()), |folder| File::open(folder)?.sync_all())?;
    Ok(key)
}
