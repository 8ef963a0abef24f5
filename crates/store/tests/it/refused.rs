//! Data folders that cannot be used: each is refused with a helpful message and left unchanged.

use std::collections::BTreeMap;
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;

use posthaste_store::sqlite::Sqlite;
use rusqlite::Connection;

use super::new_folder;

const DATABASE: &str = "posthaste.db";

/// Makes a folder unusable, tries to open it, and compares its files before and after. `expected` are parts of the
/// message.
fn check(make: impl FnOnce(&Path), expected: &[&str]) {
    let folder = new_folder();
    make(folder.path());
    let before = files(folder.path());
    let refused = Sqlite::open_folder(folder.path(), crate::master_key()).expect_err("it cannot be used").to_string();
    let begins = format!("cannot use the data folder {}: ", folder.path().display());
    assert!(refused.starts_with(&begins), "{refused}");
    for words in expected {
        assert!(refused.contains(words), "`{words}` is not in `{refused}`");
    }
    assert!(files(folder.path()) == before, "something was changed: {refused}");
}

/// Every file with its bytes, except the lock and SQLite's shared memory.
fn files(folder: &Path) -> BTreeMap<String, Vec<u8>> {
    let entries = fs::read_dir(folder).expect("a folder").map(|entry| entry.expect("an entry"));
    let named = entries.map(|entry| (entry.file_name().to_string_lossy().into_owned(), entry.path()));
    let kept = named.filter(|(name, path)| name != "lock" && !name.ends_with("-shm") && path.is_file());
    let read = kept.map(|(name, path)| (name, fs::read(path).expect("a file")));
    // An empty log counts as no log.
    read.filter(|(name, bytes)| !(name.ends_with("-wal") && bytes.is_empty())).collect()
}

/// Creates a valid store in the folder and closes it.
fn ours(folder: &Path) {
    drop(crate::open(folder));
}

fn change(folder: &Path, change: impl FnOnce(&mut Vec<u8>)) {
    let path = folder.join(DATABASE);
    let mut bytes = fs::read(&path).expect("the file is there");
    change(&mut bytes);
    fs::write(path, bytes).expect("it can be written");
}

#[test]
fn a_file_that_is_no_database_is_refused() {
    let says = ["is no database, or a damaged one", "move that file away"];
    check(|folder| fs::write(folder.join(DATABASE), vec![b'x'; 10_000]).expect("a file"), &says);
    check(
        |folder| {
            ours(folder);
            change(folder, |bytes| bytes[..16].fill(0));
        },
        &says,
    );
    check(|folder| fs::write(folder.join(DATABASE), b"SQLite format 3\0").expect("a file"), &["is cut short"]);
    check(|folder| fs::create_dir(folder.join(DATABASE)).expect("a folder"), &["cannot write in it"]);
}

#[test]
fn a_database_of_another_program_is_refused() {
    for mode in ["delete", "wal"] {
        let another = |folder: &Path| {
            let conn = Connection::open(folder.join(DATABASE)).expect("a file");
            conn.pragma_update(None, "journal_mode", mode).expect("a mode");
            conn.execute_batch("CREATE TABLE theirs (id); INSERT INTO theirs VALUES (1)").expect("a table");
        };
        check(another, &["is a database of another program", "name another folder"]);
    }
}

#[test]
fn a_damaged_database_is_refused() {
    let says = ["is damaged or cut short", "restore it from a backup"];
    check(
        |folder| {
            ours(folder);
            change(folder, |bytes| bytes.truncate(bytes.len() / 2));
        },
        &says,
    );
    check(
        |folder| {
            ours(folder);
            // The pages of the schema.
            change(folder, |bytes| bytes[100..8192].fill(0xa5));
        },
        &says,
    );
}

#[test]
fn a_log_without_its_database_is_refused() {
    let log_alone = |folder: &Path| {
        let elsewhere = new_folder();
        let _open = crate::open(elsewhere.path());
        fs::copy(elsewhere.path().join("posthaste.db-wal"), folder.join("posthaste.db-wal")).expect("it is there");
        fs::write(folder.join(DATABASE), b"").expect("a file");
    };
    check(log_alone, &["is empty, and the log beside it is not", "restore both from a backup"]);
}

#[test]
fn a_newer_database_is_refused_wherever_it_says_so() {
    let says = ["has version 1000", "run the newer build that wrote it"];
    let newer = |folder: &Path| {
        ours(folder);
        let conn = Connection::open(folder.join(DATABASE)).expect("the file is there");
        conn.pragma_update(None, "user_version", 1_000).expect("a number");
        conn
    };
    check(|folder| drop(newer(folder)), &says);
    // Killed before the log was copied into the database: only the log has the new version.
    check(
        |folder| {
            let elsewhere = new_folder();
            let _open = newer(elsewhere.path());
            for file in ["posthaste.db", "posthaste.db-wal"] {
                fs::copy(elsewhere.path().join(file), folder.join(file)).expect("the file is there");
            }
        },
        &says,
    );
}

#[test]
fn a_folder_that_cannot_be_written_is_refused() {
    // Not even root can create files there.
    let refused =
        Sqlite::open_folder(Path::new("/sys/kernel"), crate::master_key()).expect_err("it is the system's").to_string();
    assert!(refused.starts_with("cannot use the data folder /sys/kernel: cannot write in it: "), "{refused}");

    let folder = new_folder();
    ours(folder.path());
    let database = folder.path().join(DATABASE);
    let mode = |mode| fs::set_permissions(&database, fs::Permissions::from_mode(mode)).expect("our own file");
    mode(0o400);
    let before = fs::read(&database).expect("the file is there");
    match (fs::OpenOptions::new().append(true).open(&database), Sqlite::open_folder(folder.path(), crate::master_key()))
    {
        (Err(_), Err(refused)) => {
            assert!(refused.to_string().contains("cannot write in it"), "{refused}");
            assert_eq!(fs::read(&database).expect("the file is there"), before);
        }
        // Root may write despite the mode, and then so may the store.
        (Ok(_), Ok(_)) => {}
        (system, opened) => panic!("the system returns {system:?} and the store {opened:?}"),
    }
    mode(0o600);
    ours(folder.path());
}
