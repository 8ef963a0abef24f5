//! `posthaste policy preview`.

use crate::{json, posthaste, refused, succeeded};

#[test]
fn a_preview_is_text_with_a_table_or_json() {
    let folder = tempfile::tempdir().expect("a folder");
    let words = succeeded(folder.path(), "policy preview webhook --tier 1 --ttl 24h");
    assert!(words.contains("since accept") && words.contains("survives for certain"), "{words}");
    assert_eq!(json(folder.path(), "policy preview webhook --json")["waits"][0]["after"], "10s");
}

#[test]
fn an_unknown_policy_is_refused_with_the_nearest_name() {
    let folder = tempfile::tempdir().expect("a folder");
    refused(folder.path(), "policy preview webhok", "the nearest is webhook");
    refused(folder.path(), "policy preview webhook --tier 4", "use 1, 2, 3 or one of");
}

#[test]
fn a_ttl_has_the_form_and_the_bounds_of_the_api() {
    let folder = tempfile::tempdir().expect("a folder");
    for good in ["0", "90", "24h", "30d"] {
        succeeded(folder.path(), &format!("policy preview webhook --ttl {good}"));
    }
    refused(folder.path(), "policy preview webhook --ttl 31d", "must be at most 30d");
}

#[test]
fn a_closed_output_pipe_is_not_an_error() {
    let folder = tempfile::tempdir().expect("a folder");
    for line in ["policy preview webhook", "demo"] {
        let (reader, writer) = std::io::pipe().expect("a pipe");
        drop(reader);
        let output = posthaste(folder.path(), line).stdout(writer).output().expect("the command starts");
        assert!(output.status.success() && output.stderr.is_empty(), "{line}: {output:?}");
    }
}
