//! `posthaste simulate`.

use crate::{ended, json, refused, succeeded};

/// Small enough for a test, with everything that the full one has.
const SMALL: &str = "simulate --load 2 --capacity 4 --outage 5m --policy webhook --policy naive-fixed";

#[test]
fn senders_are_compared_in_a_table_a_chart_and_text() {
    let folder = tempfile::tempdir().expect("a folder");
    let (ok, text, complaint) = ended(folder.path(), SMALL);
    assert!(ok && complaint.is_empty(), "{complaint}");
    for part in ["down for 5m", "tries into", "naive, every 60 s", "▲ back", "░", "it would take 5m"] {
        assert!(text.contains(part), "no {part:?} in\n{text}");
    }
    assert_eq!(text, succeeded(folder.path(), SMALL), "the same seed is the same run");
    assert_ne!(text, succeeded(folder.path(), &format!("{SMALL} --seed 2")));
}

#[test]
fn json_has_the_figures_and_the_load() {
    let folder = tempfile::tempdir().expect("a folder");
    let json = json(folder.path(), &format!("{SMALL} --json"));
    let [posthaste, naive] = [0, 1].map(|index| &json["senders"][index]);
    assert_eq!((&posthaste["name"], &naive["name"]), (&"posthaste".into(), &"naive-fixed".into()));
    let tries = |sender: &serde_json::Value| sender["tries_into_outage"].as_u64().expect("a number");
    assert!(tries(posthaste) * 10 < tries(naive), "{} and {}", tries(posthaste), tries(naive));
    let by_second = &naive["tries_by_second"].as_array().expect("a list")[120..420];
    let by_second: u64 = by_second.iter().map(|second| second.as_u64().expect("a number")).sum();
    assert_eq!(by_second, tries(naive), "the outage is from the third minute to the seventh");
}

#[test]
fn an_svg_is_written_to_the_given_file() {
    let folder = tempfile::tempdir().expect("a folder");
    succeeded(folder.path(), &format!("{SMALL} --svg load.svg"));
    let svg = std::fs::read_to_string(folder.path().join("load.svg")).expect("the file");
    assert!(svg.starts_with("<svg") && svg.contains("Posthaste") && svg.contains("naive, every 60 s"));
    refused(folder.path(), &format!("{SMALL} --svg missing/load.svg"), "cannot write missing/load.svg");
}

#[test]
fn bad_arguments_are_refused_with_a_hint() {
    let folder = tempfile::tempdir().expect("a folder");
    let cases = [
        ("--load 60", "--load 60 is not below --capacity 50"),
        ("--load x", "must be a number a second"),
        ("--load NaN", "must be from 0.1 to 1000"),
        ("--capacity 0", "must be from 0.1 to 1000"),
        ("--outage soon", "must be a time such as"),
        ("--outage 0s", "--outage 0s is not from 1s to 1d"),
        ("--outage 3h", "--policy naive-fixed would make about 73 million requests"),
        ("--outage 12h --policy webhook", "make 1350000 messages until half an hour after it; at most 500000"),
        ("--shed-cost 2", "must be from 0 to 1"),
        ("--horizon 5m", "--horizon 5m is not from 30m"),
        ("--down gone", "possible values: refuse, 503, timeout"),
        ("--policy webhok", "the nearest is webhook"),
        ("--policy naive-fix", "the nearest is naive-fixed"),
    ];
    for (given, part) in cases {
        refused(folder.path(), &format!("simulate {given}"), part);
    }
}
