//! Integration tests of the SQLite store and its data folder. The contract of all stores is tested in the crate itself:
//! see `conformance`.

mod audit;
mod cut;
mod erasure;
mod folder;
mod refused;
mod retention;
mod rotation;
mod space;
mod tamper;

use posthaste_crypto::master::{MasterKey, Masters};
use tempfile::TempDir;

fn new_folder() -> TempDir {
    tempfile::tempdir().expect("a temporary folder")
}

/// The same key each time, so that a test can open a folder again.
fn master_key() -> Masters {
    Masters::new(MasterKey::parse("eTCMQLiQ1WZ3aITDlrR/+iyAzDYqPegWJRe4Ws+PyBg=").expect("32 random bytes"))
}
