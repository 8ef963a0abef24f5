//! `posthaste backup` and `posthaste restore`, with and without a running server.

use crate::{begun, json, refused, stop, succeeded};

#[test]
fn a_backup_of_a_running_server_is_restored_only_with_its_master_key() {
    let folder = tempfile::tempdir().expect("a folder");
    let server = begun(folder.path());
    refused(folder.path(), "backup --to kept/first", "there is no folder kept to make it in");
    assert!(!folder.path().join("kept").exists(), "a missing parent, such as an unmounted disk, is an error");
    std::fs::create_dir(folder.path().join("kept")).expect("a folder");
    let printed = succeeded(folder.path(), "backup --to kept/first");
    refused(folder.path(), "backup --to kept/first", "is there already");
    stop(server);
    assert!(printed.contains("which is not in the backup"), "{printed}");
    let kept = std::fs::read_dir(folder.path().join("kept")).expect("a folder").count();
    assert_eq!(kept, 1, "nothing else is left");
    let complaint = refused(folder.path(), "restore kept/first --data elsewhere", "is missing; put that file back");
    assert!(complaint.contains("kept/first") && !complaint.contains("restoring"), "{complaint}");
    let left = std::fs::read_dir(folder.path().join("elsewhere")).expect("it is there for the key").count();
    assert_eq!(left, 0, "a restore that failed leaves nothing behind");
    let key = folder.path().join("posthaste-data/master.key");
    std::fs::copy(&key, folder.path().join("elsewhere/master.key")).expect("a copy");
    let printed = succeeded(folder.path(), "restore kept/first --data elsewhere");
    assert!(printed.contains("It is paused") && printed.contains("No deliveries"), "{printed}");
    std::fs::create_dir(folder.path().join("again")).expect("a folder");
    std::fs::copy(&key, folder.path().join("again/master.key")).expect("a copy");
    let json = json(folder.path(), "restore kept/first --data again --json");
    assert!(json["paused"] == true && json["would_send"] == serde_json::json!([]), "{json}");
    refused(folder.path(), "restore kept/first --data elsewhere", "is there already");
    succeeded(folder.path(), "audit verify --data elsewhere");
}

#[test]
fn folders_without_a_store_or_a_backup_are_refused() {
    let folder = tempfile::tempdir().expect("a folder");
    refused(folder.path(), "backup --to kept", "there is no posthaste.db in it");
    assert!(!folder.path().join("kept").exists());
    let complaint = refused(folder.path(), "restore nowhere --data elsewhere", "cannot read nowhere/manifest");
    assert_eq!(complaint.matches("No such file").count(), 1, "{complaint}");
    assert!(!folder.path().join("elsewhere").exists());
}
