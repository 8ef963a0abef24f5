//! `posthaste serve`: its API keys, its log, and the cases in which it refuses to start.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::os::unix::fs::PermissionsExt;
use std::process::Stdio;

use crate::{ended, kill, refused, serving};

#[test]
fn without_dev_a_key_is_needed_and_the_first_one_is_written_to_a_file() {
    let folder = tempfile::tempdir().expect("a folder");
    let (server, line) = serving(folder.path(), "serve --listen 127.0.0.1:0", Stdio::null());
    // The key's file is written before the first request is answered.
    let without = list_tenants(&line, "");
    let file = folder.path().join("posthaste-data/operator.key");
    let key = std::fs::read_to_string(&file).unwrap_or_default();
    let with = list_tenants(&line, &format!("authorization: Bearer {}\r\n", key.trim()));
    kill(server);
    assert!(without.starts_with("HTTP/1.1 401 "), "{without}");
    assert!(with.starts_with("HTTP/1.1 200 "), "{with}");
    assert!(key.starts_with("ph_op_"), "an operator key");
    assert_eq!(std::fs::metadata(&file).expect("it is there").permissions().mode() & 0o777, 0o600);
}

/// Requests the list of tenants with this header from the server that printed this line; returns the whole answer.
fn list_tenants(line: &str, header: &str) -> String {
    let address = line.split("http://").nth(1).and_then(|rest| rest.split(',').next()).unwrap_or_default();
    let mut stream = TcpStream::connect(address).expect("it listens");
    let request = format!("GET /v1/tenants HTTP/1.1\r\nhost: {address}\r\n{header}connection: close\r\n\r\n");
    stream.write_all(request.as_bytes()).expect("it reads");
    let mut answer = String::new();
    stream.read_to_string(&mut answer).expect("it answers");
    answer
}

#[test]
fn the_access_log_has_the_request_id_of_the_answer() {
    let folder = tempfile::tempdir().expect("a folder");
    let log = std::fs::File::create(folder.path().join("log")).expect("a file");
    let (server, line) = serving(folder.path(), "serve --dev --listen 127.0.0.1:0 --set log=debug", log);
    let answer = list_tenants(&line, "");
    kill(server);
    let id = answer.lines().find_map(|line| line.strip_prefix("request-id: ")).expect("it has one").trim();
    let log = std::fs::read_to_string(folder.path().join("log")).expect("a log");
    let line = log.lines().find(|line| line.contains(id)).unwrap_or_else(|| panic!("{id} in {log}"));
    assert!(line.contains("/v1/tenants") && line.contains("status"), "{line}");
}

#[test]
fn dev_refuses_an_address_that_is_not_loopback() {
    let folder = tempfile::tempdir().expect("a folder");
    refused(folder.path(), "serve --dev --listen 0.0.0.0:8400", "use 127.0.0.1:8400 instead of 0.0.0.0:8400");
}

#[test]
fn all_faults_of_the_settings_are_reported_at_once() {
    let folder = tempfile::tempdir().expect("a folder");
    std::fs::write(folder.path().join("posthaste.toml"), "lisen = \"x\"\nslots = 0\n").expect("a file");
    assert!(refused(folder.path(), "serve --dev", "lisen in posthaste.toml").contains("slots in"));
    refused(folder.path(), "serve --dev --config missing.toml", "cannot read missing.toml");
}

#[test]
fn a_second_server_on_the_same_folder_is_refused_and_the_first_keeps_running() {
    let folder = tempfile::tempdir().expect("a folder");
    let (mut first, line) = serving(folder.path(), "serve --dev --listen 127.0.0.1:0", Stdio::null());
    let (ok, _, complaint) = ended(folder.path(), "serve --dev --listen 127.0.0.1:0");
    let still_there = first.0.try_wait().expect("its state is known").is_none();
    kill(first);
    assert!(line.starts_with("posthaste: listening on http://127.0.0.1:"), "{line}");
    assert!(!ok && complaint.contains("posthaste-data"), "{complaint}");
    assert!(still_there);
}

#[test]
fn a_master_key_readable_by_others_is_refused_with_the_remedy() {
    let folder = tempfile::tempdir().expect("a folder");
    let key = folder.path().join("key");
    std::fs::write(&key, "hunter2").expect("a file");
    std::fs::set_permissions(&key, std::fs::Permissions::from_mode(0o644)).expect("its permissions");
    std::fs::write(folder.path().join("posthaste.toml"), "master_key_file = \"key\"\n").expect("a file");
    let remedy = "can be read by others (mode 644); run `chmod 600 key`";
    let complaint = refused(folder.path(), "serve --dev --listen 127.0.0.1:0", remedy);
    assert!(!complaint.contains("hunter2"), "{complaint}");
}
