//! `posthaste keys`: which master key is needed, and a newer one in its place.

use crate::{begun, ended, stop};

#[test]
fn a_rotation_puts_a_newer_key_in_the_place_of_the_old_one() {
    let folder = tempfile::tempdir().expect("a folder");
    stop(begun(folder.path()));
    let file = folder.path().join("posthaste-data/master.key");
    let old = std::fs::read_to_string(&file).expect("the first start made it");
    let (_, before, _) = ended(folder.path(), "keys status");
    assert!(before.starts_with("The data are sealed under master key "), "{before}");
    let (ok, said, complaint) = ended(folder.path(), "keys rotate");
    assert!(ok && said.contains("keys were wrapped anew"), "{said}{complaint}");
    let new = std::fs::read_to_string(&file).expect("it is there");
    assert!(new != old && new.lines().count() == 1, "the old key is forgotten");
    let (_, after, _) = ended(folder.path(), "keys status");
    assert_ne!(after, before);
    let mut server = begun(folder.path());
    server.kill().and_then(|()| server.wait()).expect("it serves with the key that is there, until it is killed");
    std::fs::write(&file, old).expect("it can be written");
    let (ok, _, complaint) = ended(folder.path(), "keys rotate");
    assert!(!ok && complaint.contains("the data are sealed under master key"), "{complaint}");
}

#[test]
fn commands_beside_the_server_take_its_settings_file_and_any_setting() {
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
        let (ok, said, complaint) = ended(folder.path(), line);
        assert!(ok, "{line}: {said}{complaint}");
    }
    let (_, said, _) = ended(folder.path(), "keys status --config own.toml --json");
    let told: serde_json::Value = serde_json::from_str(&said).expect("one JSON object");
    assert!(told["newest"].is_string() && told["older"] == serde_json::json!([]), "{said}");
    let (_, said, _) = ended(folder.path(), "backup --config own.toml --to second --json");
    let told: serde_json::Value = serde_json::from_str(&said).expect("one JSON object");
    assert_eq!((&told["to"], &told["backup"]["pending"]), (&"second".into(), &0.into()), "{said}");
    let (ok, _, complaint) = ended(folder.path(), "keys status --set dta=elsewhere");
    assert!(!ok && complaint.contains("dta"), "{complaint}");
}

#[test]
fn without_a_store_there_is_nothing_to_rotate() {
    let folder = tempfile::tempdir().expect("a folder");
    for line in ["keys status", "keys rotate"] {
        let (ok, _, complaint) = ended(folder.path(), line);
        assert!(!ok && complaint.contains("there is no posthaste.db in it"), "{complaint}");
    }
    assert!(!folder.path().join("posthaste-data").exists(), "none is made");
}
