//! SQLite keeps the contract across restarts, and as the memory store does whatever is asked of it.
//!
//! The contract itself is in the crate: `conformance`.

mod folder;
mod histories;
mod refused;
mod space;

use tempfile::TempDir;

fn new_folder() -> TempDir {
    tempfile::tempdir().expect("a temporary folder")
}
