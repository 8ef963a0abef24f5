//! `posthaste serve`: when it refuses to start, and how it ends.

use std::io::{BufRead, BufReader};
use std::os::unix::fs::PermissionsExt;
use std::process::Stdio;

use crate::{ended, posthaste};

#[test]
fn without_dev_it_says_that_there_are_no_keys_yet() {
    let folder = tempfile::tempdir().expect("a folder");
    let (ok, _, complaint) = ended(folder.path(), "serve");
    assert!(!ok && complaint.contains("no API keys yet") && complaint.contains("--dev"), "{complaint}");
    assert!(!folder.path().join("posthaste-data").exists(), "nothing was made");
}

#[test]
fn dev_listens_on_this_machine_alone() {
    let folder = tempfile::tempdir().expect("a folder");
    let (ok, _, complaint) = ended(folder.path(), "serve --dev --listen 0.0.0.0:8400");
    assert!(!ok && complaint.contains("use 127.0.0.1:8400 instead of 0.0.0.0:8400"), "{complaint}");
}

#[test]
fn settings_that_are_wrong_are_told_all_at_once() {
    let folder = tempfile::tempdir().expect("a folder");
    std::fs::write(folder.path().join("posthaste.toml"), "lisen = \"x\"\nslots = 0\n").expect("a file");
    let (ok, _, complaint) = ended(folder.path(), "serve --dev");
    assert!(!ok && complaint.contains("lisen in posthaste.toml") && complaint.contains("slots in"), "{complaint}");
    let (ok, _, complaint) = ended(folder.path(), "serve --dev --config missing.toml");
    assert!(!ok && complaint.contains("cannot read missing.toml"), "{complaint}");
}

#[test]
fn a_second_server_on_the_same_folder_is_refused_and_the_first_goes_on() {
    let folder = tempfile::tempdir().expect("a folder");
    let mut first = posthaste(folder.path(), "serve --dev --listen 127.0.0.1:0")
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()
        .expect("the command starts");
    let mut said = String::new();
    let heard = BufReader::new(first.stdout.take().expect("piped")).read_line(&mut said);
    let (ok, _, complaint) = ended(folder.path(), "serve --dev --listen 127.0.0.1:0");
    let still_there = first.try_wait().expect("its state is known").is_none();
    first.kill().expect("it runs");
    first.wait().expect("it ends");
    heard.expect("it says something");
    assert!(said.starts_with("posthaste: listening on http://127.0.0.1:"), "{said}");
    assert!(!ok && complaint.contains("posthaste-data"), "{complaint}");
    assert!(still_there);
}

#[test]
fn a_master_key_that_others_may_read_stops_the_start_and_says_what_to_do() {
    let folder = tempfile::tempdir().expect("a folder");
    let key = folder.path().join("key");
    std::fs::write(&key, "hunter2").expect("a file");
    std::fs::set_permissions(&key, std::fs::Permissions::from_mode(0o644)).expect("its permissions");
    std::fs::write(folder.path().join("posthaste.toml"), "master_key_file = \"key\"\n").expect("a file");
    let (ok, _, complaint) = ended(folder.path(), "serve --dev --listen 127.0.0.1:0");
    assert!(!ok && complaint.contains("can be read by others (mode 644); run `chmod 600 key`"), "{complaint}");
    assert!(!complaint.contains("hunter2"), "{complaint}");
}
