//! `posthaste audit`: with a running server, on a stopped folder, and with bad arguments.

use std::path::Path;

use crate::{begun, ended, json, kill, posthaste, refused, stop, succeeded};

fn exit_code(folder: &Path, line: &str) -> Option<i32> {
    posthaste(folder, line).output().expect("the command starts").status.code()
}

#[test]
fn a_journal_is_verified_while_the_server_runs_and_later_with_exported_checkpoints() {
    let folder = tempfile::tempdir().expect("a folder");
    let server = begun(folder.path());
    let words = succeeded(folder.path(), "audit verify");
    stop(server);
    assert!(words.contains("Nothing was changed"), "{words}");
    let exported = succeeded(folder.path(), "audit checkpoint");
    assert!(exported.starts_with("posthaste checkpoint 1 "), "{exported}");
    std::fs::write(folder.path().join("kept"), &exported).expect("a file");
    let words = succeeded(folder.path(), "audit verify --checkpoint kept --public-key kept");
    assert!(words.contains("all rows") && words.contains("as you gave it"), "{words}");
    let json = json(folder.path(), "audit verify --json");
    assert!(json["clean"] == true && json["public_key_from"] == "file", "{json}");
    let pem = succeeded(folder.path(), "audit checkpoint --pem");
    assert!(pem.starts_with("-----BEGIN PUBLIC KEY-----"), "{pem}");
}

#[test]
fn sign_covers_a_stopped_folder_to_its_end_and_is_refused_while_a_server_runs() {
    let folder = tempfile::tempdir().expect("a folder");
    let server = begun(folder.path());
    refused(folder.path(), "audit checkpoint --sign", "leave --sign out");
    // Before it can sign again.
    kill(server);
    let before = succeeded(folder.path(), "audit checkpoint");
    let signed = succeeded(folder.path(), "audit checkpoint --sign");
    assert!(signed.starts_with("posthaste checkpoint 1 ") && signed != before, "{signed}");
    std::fs::write(folder.path().join("kept"), &signed).expect("a file");
    let words = succeeded(folder.path(), "audit verify --checkpoint kept --public-key kept");
    assert!(words.contains("all rows"), "{words}");
}

#[test]
fn another_store_s_checkpoint_is_a_finding_and_exit_code_one() {
    let (folder, other) = (tempfile::tempdir().expect("a folder"), tempfile::tempdir().expect("a folder"));
    for folder in [&folder, &other] {
        stop(begun(folder.path()));
    }
    let (_, exported, _) = ended(other.path(), "audit checkpoint");
    std::fs::write(folder.path().join("kept"), exported).expect("a file");
    let (clean, words, _) = ended(folder.path(), "audit verify --checkpoint kept");
    assert!(!clean && words.contains("is another store's"), "{words}");
    assert_eq!(exit_code(folder.path(), "audit verify --checkpoint kept"), Some(1));
    assert_eq!(exit_code(folder.path(), "audit verify"), Some(0));
}

#[test]
fn a_verification_that_cannot_run_exits_with_two_and_the_reason() {
    let folder = tempfile::tempdir().expect("a folder");
    std::fs::write(folder.path().join("kept"), "nothing of the kind\n").expect("a file");
    for (line, expected) in [
        ("audit verify", "there is no posthaste.db"),
        ("audit checkpoint --data elsewhere", "elsewhere"),
        ("audit verify --checkpoint kept", "line 1 of kept is no checkpoint"),
        ("audit verify --checkpoint missing", "cannot read missing"),
        ("audit verify --public-key kept", "kept has no public key"),
        ("audit verify --public-key missing", "neither a key nor a file"),
    ] {
        let (_, _, complaint) = ended(folder.path(), line);
        assert!(complaint.contains(expected), "{line}: {complaint}");
        assert_eq!(exit_code(folder.path(), line), Some(2), "{line}");
    }
}
