//! `posthaste keys`: the status of the master key, and its rotation.

use crate::{begun, ended, refused, stop};

#[test]
fn a_rotation_replaces_the_master_key() {
    let folder = tempfile::tempdir().expect("a folder");
    stop(begun(folder.path()));
    let file = folder.path().join("posthaste-data/master.key");
    let old = std::fs::read_to_string(&file).expect("the first start made it");
    let (_, before, _) = ended(folder.path(), "keys status");
    assert!(before.starts_with("The data is encrypted under master key "), "{before}");
    let (ok, printed, complaint) = ended(folder.path(), "keys rotate");
    assert!(ok && printed.contains("keys were rewrapped"), "{printed}{complaint}");
    let new = std::fs::read_to_string(&file).expect("it is there");
    assert!(new != old && new.lines().count() == 1, "the old key is no longer in the file");
    let (_, after, _) = ended(folder.path(), "keys status");
    assert_ne!(after, before);
    let mut server = begun(folder.path());
    server.kill().and_then(|()| server.wait()).expect("it serves with the new key, until it is killed");
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
        let (ok, printed, complaint) = ended(folder.path(), line);
        assert!(ok, "{line}: {printed}{complaint}");
    }
    let (_, printed, _) = ended(folder.path(), "keys status --config own.toml --json");
    let json: serde_json::Value = serde_json::from_str(&printed).expect("one JSON object");
    assert!(json["newest"].is_string() && json["older"] == serde_json::json!([]), "{printed}");
    let (_, printed, _) = ended(folder.path(), "backup --config own.toml --to second --json");
    let json: serde_json::Value = serde_json::from_str(&printed).expect("one JSON object");
    assert_eq!((&json["to"], &json["backup"]["pending"]), (&"second".into(), &0.into()), "{printed}");
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
