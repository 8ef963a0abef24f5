//! SQLite and its folder: what outlives a restart, and what is refused.
//!
//! The contract itself is in the crate: `conformance`.

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

/// The same each time: what was left behind is opened again.
fn master_key() -> Masters {
    Masters::new(MasterKey::parse("eTCMQLiQ1WZ3aITDlrR/+iyAzDYqPegWJRe4Ws+PyBg=").expect("32 random bytes"))
}
