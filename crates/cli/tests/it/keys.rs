//! `posthaste keys`: the status of the master key, and its rotation.

use crate::{begun, json, kill, refused, stop, succeeded};

#[test]
fn a_rotation_replaces_the_master_key() {
    let folder = tempfile::tempdir().expect("a folder");
    stop(begun(folder.path()));
    let file = folder.path().join("posthaste-data/master.key");
    let old = std::fs::read_to_string(&file).expect("the first start made it");
    let before = succeeded(folder.path(), "keys status");
    assert!(before.starts_with("The data is encrypted under master key "), "{before}");
    let printed = succeeded(folder.path(), "keys rotate");
    assert!(printed.contains("keys were rewrapped"), "{printed}");
    let new = std::fs::read_to_string(&file).expect("it is there");
    assert!(new != old && new.lines().count() == 1, "the old key is no longer in the file");
    assert_ne!(succeeded(folder.path(), "keys status"), before);
    // It serves with the new key.
    kill(begun(folder.path()));
    std::fs::write(&file, old).expect("it can be written");
    refused(folder.path(), "keys rotate", "the data are sealed under master key");
}

#[test]
fn maintenance_commands_take_the_server_s_settings_file_and_any_setting() {
    let folder = tempfile::tempdir().expect("a folder");
    stop(begun(folder.path()));
    std::fs::rename(folder.path().join("posthaste-data"), folder.path().join("elsewhere")).expect("a folder");
    std::fs::write(folder.path().join("own.toml"), "data = \"elsewhere\"\n").expect("a file");
    for line in [
        "keys status --config own.toml",
        "keys status --set data=elsewhere",
        "audit verify --config own.toml",
        "audit checkpoint --set data=elsewhere",
        "keys rotate --config own.toml",
        "backup --config own.toml --to kept",
        "restore kept --config own.toml --set data=third --set master_key_file=elsewhere/master.key",
    ] {
        succeeded(folder.path(), line);
    }
    let status = json(folder.path(), "keys status --config own.toml --json");
    assert!(status["newest"].is_string() && status["older"] == serde_json::json!([]), "{status}");
    let made = json(folder.path(), "backup --config own.toml --to second --json");
    assert_eq!((&made["to"], &made["backup"]["pending"]), (&"second".into(), &0.into()), "{made}");
    refused(folder.path(), "keys status --set dta=elsewhere", "dta");
}

#[test]
fn keys_commands_fail_without_a_store_and_create_none() {
    let folder = tempfile::tempdir().expect("a folder");
    for line in ["keys status", "keys rotate"] {
        refused(folder.path(), line, "there is no posthaste.db in it");
    }
    assert!(!folder.path().join("posthaste-data").exists(), "no store is created");
}
