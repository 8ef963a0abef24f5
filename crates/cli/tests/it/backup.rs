//! `posthaste backup` and `posthaste restore`: beside a server, and elsewhere.

use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Child, Stdio};

use crate::{ended, posthaste};

fn serve(folder: &Path) -> Child {
    let mut server = posthaste(folder, "serve --dev --listen 127.0.0.1:0")
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()
        .expect("the command starts");
    let mut said = String::new();
    let heard = BufReader::new(server.stdout.take().expect("piped")).read_line(&mut said);
    heard.expect("it says something");
    // Before its first checkpoint it may not listen to signals yet; each look is a process of its own.
    assert!((0..1_000).any(|_| ended(folder, "audit checkpoint").0), "it never begins");
    server
}

fn stop(mut server: Child) {
    let asked = std::process::Command::new("kill").args(["-TERM", &server.id().to_string()]).status();
    assert!(asked.expect("kill runs").success());
    assert!(server.wait().expect("it ends").success());
}

#[test]
fn a_backup_beside_a_server_is_restored_with_its_key_and_without_it_is_not() {
    let folder = tempfile::tempdir().expect("a folder");
    let server = serve(folder.path());
    let (made, said, complaint) = ended(folder.path(), "backup --to kept/first");
    let (again, _, there) = ended(folder.path(), "backup --to kept/first");
    stop(server);
    assert!(made && said.contains("it is not in the backup"), "{said}{complaint}");
    assert!(!again && there.contains("is there already"), "{there}");
    let kept = std::fs::read_dir(folder.path().join("kept")).expect("a folder").count();
    assert_eq!(kept, 1, "nothing else is left");
    let (ok, _, complaint) = ended(folder.path(), "restore kept/first --data elsewhere");
    assert!(!ok && complaint.contains("is missing; put that file back"), "{complaint}");
    let key = folder.path().join("elsewhere/master.key");
    std::fs::copy(folder.path().join("posthaste-data/master.key"), key).expect("a copy");
    let (ok, said, complaint) = ended(folder.path(), "restore kept/first --data elsewhere");
    assert!(ok && said.contains("It is paused") && said.contains("Nothing waits"), "{said}{complaint}");
    let (ok, _, complaint) = ended(folder.path(), "restore kept/first --data elsewhere");
    assert!(!ok && complaint.contains("is there already"), "{complaint}");
    let (clean, words, _) = ended(folder.path(), "audit verify --data elsewhere");
    assert!(clean, "{words}");
}

#[test]
fn what_is_no_store_and_what_is_no_backup_is_refused() {
    let folder = tempfile::tempdir().expect("a folder");
    let (ok, _, complaint) = ended(folder.path(), "backup --to kept");
    assert!(!ok && complaint.contains("there is no posthaste.db in it"), "{complaint}");
    assert!(!folder.path().join("kept").exists());
    let (ok, _, complaint) = ended(folder.path(), "restore nowhere --data elsewhere");
    assert!(!ok && complaint.contains("cannot read nowhere/manifest"), "{complaint}");
    assert!(!folder.path().join("elsewhere").exists());
}
