//! Every store keeps the same contract; SQLite keeps it across restarts.

mod folder;
mod histories;

use posthaste_store::conformance;
use posthaste_store::memory::MemoryStore;
use posthaste_store::sqlite::Sqlite;
use tempfile::TempDir;

#[tokio::test]
async fn the_memory_store_keeps_the_contract() {
    conformance::run(async || MemoryStore::default()).await;
}

#[tokio::test]
async fn the_sqlite_store_keeps_the_contract() {
    let parent = new_folder();
    conformance::run(async || {
        let count = std::fs::read_dir(parent.path()).expect("the folder is there").count();
        Sqlite::open_folder(&parent.path().join(count.to_string())).expect("a fresh folder opens")
    })
    .await;
}

fn new_folder() -> TempDir {
    tempfile::tempdir().expect("a temporary folder")
}
