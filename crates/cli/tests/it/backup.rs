//! `posthaste backup` and `posthaste restore`: beside a server, and elsewhere.

use crate::{begun, ended, stop};

#[test]
fn a_backup_beside_a_server_is_restored_with_its_key_and_without_it_is_not() {
    let folder = tempfile::tempdir().expect("a folder");
    let server = begun(folder.path());
    let (ok, _, complaint) = ended(folder.path(), "backup --to kept/first");
    assert!(!ok && complaint.contains("there is no folder kept to make it in"), "{complaint}");
    assert!(!folder.path().join("kept").exists(), "a disk that is not mounted is noticed");
    std::fs::create_dir(folder.path().join("kept")).expect("a folder");
    let (made, said, complaint) = ended(folder.path(), "backup --to kept/first");
    let (again, _, there) = ended(folder.path(), "backup --to kept/first");
    stop(server);
    assert!(made && said.contains("it is not in the backup"), "{said}{complaint}");
    assert!(!again && there.contains("is there already"), "{there}");
    let kept = std::fs::read_dir(folder.path().join("kept")).expect("a folder").count();
    assert_eq!(kept, 1, "nothing else is left");
    let (ok, _, complaint) = ended(folder.path(), "restore kept/first --data elsewhere");
    assert!(!ok && complaint.contains("is missing; put that file back"), "{complaint}");
    assert!(complaint.contains("kept/first") && !complaint.contains("restoring"), "{complaint}");
    let left = std::fs::read_dir(folder.path().join("elsewhere")).expect("it is there for the key").count();
    assert_eq!(left, 0, "a restore that failed leaves nothing behind");
    let key = folder.path().join("elsewhere/master.key");
    std::fs::copy(folder.path().join("posthaste-data/master.key"), key).expect("a copy");
    let (ok, said, complaint) = ended(folder.path(), "restore kept/first --data elsewhere");
    assert!(ok && said.contains("It is paused") && said.contains("Nothing waits"), "{said}{complaint}");
    let key = folder.path().join("again/master.key");
    std::fs::create_dir(folder.path().join("again")).expect("a folder");
    std::fs::copy(folder.path().join("posthaste-data/master.key"), key).expect("a copy");
    let (ok, said, complaint) = ended(folder.path(), "restore kept/first --data again --json");
    let told: serde_json::Value = serde_json::from_str(&said).unwrap_or_default();
    assert!(ok && told["paused"] == true && told["would_send"] == serde_json::json!([]), "{said}{complaint}");
    let (ok, _, complaint) = ended(folder.path(), "restore kept/first --data elsewhere");
    assert!(!ok && complaint.contains("is there already"), "{complaint}");
    let (clean, words, _) = ended(folder.path(), "audit verify --data elsewhere");
    assert!(clean, "{words}");
}

#[test]
fn what_is_no_store_and_what_is_no_backup_is_refused() {
    let folder = tempfile::tempdir().expect("a folder");
    let (ok, _, complaint) = ended(folder.path(), "backup --to kept");
    assert!(!ok && complaint.contains("there is no posthaste.db in it"), "{complaint}");
    assert!(!folder.path().join("kept").exists());
    let (ok, _, complaint) = ended(folder.path(), "restore nowhere --data elsewhere");
    assert_eq!(complaint.matches("No such file").count(), 1, "{complaint}");
    assert!(!ok && complaint.contains("cannot read nowhere/manifest"), "{complaint}");
    assert!(!folder.path().join("elsewhere").exists());
}
