//! `posthaste bench`.

use crate::{json, refused};

#[test]
fn a_short_bench_delivers_every_message_and_writes_its_figures() {
    let folder = tempfile::tempdir().expect("a folder");
    let line = "bench --scenario https --rounds 1 --seconds 1 --messages 500 --json --svg figures.svg";
    let report = json(folder.path(), line);
    let figures = &report["scenarios"][0];
    assert_eq!(figures["scenario"], "https");
    assert_eq!((&figures["lost"], &figures["duplicates"]), (&0.into(), &0.into()));
    assert!(figures["delivered"].as_u64() >= Some(100) && figures["delivered"] == figures["accepted"], "{figures}");
    let svg = std::fs::read_to_string(folder.path().join("figures.svg")).expect("the file");
    assert!(svg.starts_with("<svg") && svg.contains(">https</text>"), "{svg}");
}

#[test]
fn scenarios_that_do_not_exist_or_cannot_be_compared_are_refused() {
    let folder = tempfile::tempdir().expect("a folder");
    refused(folder.path(), "bench --scenario singel", "possible values: single, batch, fan-out");
    refused(folder.path(), "bench --scenario pending --against posthaste", "pending and half-load have no CPU");
}
