//! `posthaste demo`: every message is accounted for, and no process or file is left behind, also after an interrupt.

use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Child, Command, Stdio};

use serde_json::Value;

use crate::{posthaste, refused};

/// Small enough for a test, with everything that the full one has.
const SMALL: &str = "demo --seconds 3 --messages 240";

/// The demo with a folder of its own for temporary files.
fn demo(folder: &Path, flags: &str) -> Command {
    let temporary = folder.join("temporary");
    std::fs::create_dir(&temporary).expect("a folder");
    let mut command = posthaste(folder, &format!("{SMALL} {flags}"));
    command.env("TMPDIR", temporary);
    command
}

/// Runs the demo to its end, which must be a success; returns its stdout.
fn played(folder: &Path, flags: &str) -> String {
    let output = demo(folder, flags).output().expect("the command starts");
    let (printed, complaint) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    assert!(output.status.success(), "{printed}{complaint}");
    printed.into_owned()
}

/// The names of a folder's entries, sorted.
fn entries(folder: &Path) -> Vec<String> {
    let name = |entry: std::io::Result<std::fs::DirEntry>| entry.expect("it is there").file_name();
    let mut names: Vec<String> =
        std::fs::read_dir(folder).expect("a folder").map(|entry| name(entry).to_string_lossy().into_owned()).collect();
    names.sort();
    names
}

/// Whether a process runs whose command line contains this folder.
fn process_runs_in(folder: &Path) -> bool {
    let wanted = folder.to_string_lossy().into_owned();
    let processes = std::fs::read_dir("/proc").expect("Linux").filter_map(Result::ok);
    let lines = processes.filter_map(|process| std::fs::read(process.path().join("cmdline")).ok());
    lines.map(|line| String::from_utf8_lossy(&line).into_owned()).any(|line| line.contains(&wanted))
}

/// Checks that no process is left, and no file except these.
fn check_left_behind(folder: &Path, kept: &[&str]) {
    assert!(!process_runs_in(folder), "a process was left behind");
    assert_eq!(entries(&folder.join("temporary")), [""; 0], "temporary files were left behind");
    assert_eq!(entries(folder), kept);
}

#[test]
fn every_message_is_accounted_for_although_receivers_fail_and_the_server_is_killed() {
    let folder = tempfile::tempdir().expect("a folder");
    let printed = played(folder.path(), "--json");
    let ledger: Value = serde_json::from_str(&printed).expect("one JSON object");
    let count = |name: &str| ledger[name].as_u64().unwrap_or_else(|| panic!("no {name} in {ledger}"));
    let dead: u64 = ledger["dead"].as_object().expect("causes").values().filter_map(Value::as_u64).sum();
    assert_eq!(count("accepted"), 240);
    assert_eq!(count("delivered") + count("expired") + dead, 240, "{ledger}");
    assert_eq!((count("lost"), count("unfinished"), count("forged"), count("kills")), (0, 0, 0, 1), "{ledger}");
    assert!(count("expired") > 0 && count("replayed") > 0 && dead > 0, "{ledger}");
    assert!(count("attempts") > count("delivered"), "{ledger}");
    let taken = |receiver: &Value| receiver["taken"].as_u64().expect("a count");
    let receivers = ledger["receivers"].as_array().expect("the receivers");
    assert_eq!(receivers.iter().map(taken).sum::<u64>(), count("delivered"), "{ledger}");
    let tries = |sender: &str| ledger["outage"][sender]["tries_into_outage"].as_u64().expect("a count");
    assert!(tries("posthaste") < tries("naive"), "{ledger}");
    check_left_behind(folder.path(), &["temporary"]);
}

#[test]
fn without_a_terminal_the_demo_prints_lines_without_colours() {
    let folder = tempfile::tempdir().expect("a folder");
    let printed = played(folder.path(), "--svg load.svg");
    for part in
        ["60 times as fast", "kill -9 of the server", "the server is back", "The ledger", "░", "load.svg", "Next"]
    {
        assert!(printed.contains(part), "no {part:?} in\n{printed}");
    }
    assert!(!printed.contains('\x1b'), "no colours and no redrawing without a terminal:\n{printed}");
    let svg = std::fs::read_to_string(folder.path().join("load.svg")).expect("the picture");
    assert!(svg.starts_with("<svg") && svg.contains("Posthaste, in this run") && svg.contains("naive retries"));
    check_left_behind(folder.path(), &["load.svg", "temporary"]);
}

/// Sends a signal and returns the exit code.
fn signalled(mut demo: Child, signal: &str) -> Option<i32> {
    let killed = Command::new("kill").args([signal, &demo.id().to_string()]).status();
    assert!(killed.expect("kill runs").success());
    demo.wait().expect("it ends").code()
}

#[test]
fn an_interrupted_demo_ends_its_server_and_removes_its_data() {
    for (signal, moment) in [("-INT", "time runs"), ("-TERM", "goes down"), ("-INT", "kill -9"), ("-HUP", "is back")] {
        let folder = tempfile::tempdir().expect("a folder");
        let mut started = demo(folder.path(), "");
        let mut started = started.stdout(Stdio::piped()).stderr(Stdio::null()).spawn().expect("the command starts");
        let mut output = BufReader::new(started.stdout.take().expect("piped"));
        let mut line = String::new();
        while !line.contains(moment) {
            line.clear();
            assert!(output.read_line(&mut line).expect("it prints lines") > 0, "it ended before {moment:?}");
        }
        assert_eq!(signalled(started, signal), Some(130), "{signal} at {moment:?}");
        check_left_behind(folder.path(), &["temporary"]);
    }
}

#[test]
fn bad_arguments_are_refused_with_a_hint() {
    let folder = tempfile::tempdir().expect("a folder");
    let cases = [
        ("demo --seconds 1", "3..=40"),
        ("demo --messages 1000000", "60..=20000"),
        ("demo --seconds 3 --messages 5000", "send fewer or take longer"),
        ("demo --svg missing/load.svg", "cannot write missing/load.svg"),
        ("demo-part --folder . --scale 60 --since 0", "is no folder of a demo"),
    ];
    for (line, part) in cases {
        refused(folder.path(), line, part);
    }
    assert_eq!(entries(folder.path()), [""; 0]);
}
