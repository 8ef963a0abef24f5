//! SQLite and its folder: what outlives a restart, and what is refused.
//!
//! The contract itself is in the crate: `conformance`.

mod folder;
mod refused;
mod space;

use tempfile::TempDir;

fn new_folder() -> TempDir {
    tempfile::tempdir().expect("a temporary folder")
}
