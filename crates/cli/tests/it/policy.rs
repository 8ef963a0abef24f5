//! `posthaste policy preview`.

use crate::ended;

#[test]
fn a_preview_is_words_and_a_table_or_json() {
    let folder = tempfile::tempdir().expect("a folder");
    let (ok, words, _) = ended(folder.path(), "policy preview webhook --tier 1 --ttl 24h");
    assert!(ok && words.contains("since accept") && words.contains("survives for certain"), "{words}");
    let (ok, json, _) = ended(folder.path(), "policy preview webhook --json");
    let json: serde_json::Value = serde_json::from_str(&json).expect("JSON");
    assert!(ok);
    assert_eq!(json["waits"][0]["after"], "10s");
}

#[test]
fn a_policy_that_is_none_names_the_nearest() {
    let folder = tempfile::tempdir().expect("a folder");
    let (ok, _, complaint) = ended(folder.path(), "policy preview webhok");
    assert!(!ok && complaint.contains("the nearest is webhook"), "{complaint}");
    let (ok, _, complaint) = ended(folder.path(), "policy preview webhook --tier 4");
    assert!(!ok && complaint.contains("use 1, 2, 3 or one of"), "{complaint}");
}
