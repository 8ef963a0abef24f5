//! The attacker: it has the files of a store and no key, and knows only the database schema, which is public.

use std::fs;
use std::io::{self, Read};
use std::path::Path;

use base64::Engine as _;
use base64::engine::general_purpose::{STANDARD_NO_PAD, URL_SAFE_NO_PAD};
use posthaste_crypto::digest::sha256;
use rusqlite::Connection;

use crate::fixtures::hex;
use crate::prove::{CannotRun, Context};

/// An encoding in which a text may have been stored.
type Form = fn(&[u8]) -> Vec<u8>;

/// The encodings that are searched for, with their names.
pub const FORMS: [(&str, Form); 6] = [
    ("raw", |text| text.to_vec()),
    ("base64", |text| STANDARD_NO_PAD.encode(text).into_bytes()),
    ("base64url", |text| URL_SAFE_NO_PAD.encode(text).into_bytes()),
    ("hex", |text| hex(text).into_bytes()),
    ("percent", |text| percent(text).into_bytes()),
    ("escaped", |text| String::from_utf8_lossy(text).escape_default().to_string().into_bytes()),
];

/// Searches these folders for the texts on standard input.
pub(crate) fn search(folders: &[&str]) -> Result<(), CannotRun> {
    let mut texts = String::new();
    io::stdin().read_to_string(&mut texts)?;
    let needles: Vec<_> = texts.lines().flat_map(needles).collect();
    let (mut hits, mut read) = (0_u64, 0_u64);
    for folder in folders {
        for file in fs::read_dir(folder)? {
            let path = file?.path();
            let bytes = fs::read(&path)?;
            read += bytes.len() as u64;
            for (text, form, needle) in found(&bytes, &needles) {
                println!("found {text:?} as {form} ({} bytes) in {}", needle.len(), path.display());
                hits += 1;
            }
        }
    }
    println!("{hits} {read}");
    Ok(())
}

type Needle = (String, &'static str, Vec<u8>);

/// A text in every encoding. Base64 depends on the text's offset in a larger text, so all three alignments are
/// included; its end depends on what follows, so that is cut off.
fn needles(text: &str) -> Vec<Needle> {
    let mut needles = Vec::new();
    for (name, form) in FORMS {
        let is_base64 = name.starts_with("base64");
        for skipped in 0..if is_base64 { 3 } else { 1 } {
            let mut written = form(&text.as_bytes()[skipped..]);
            if is_base64 {
                written.truncate(written.len().saturating_sub(3));
            }
            needles.push((text.to_owned(), name, written));
        }
    }
    needles
}

/// The needles that occur in these bytes. A table of their first eight bytes keeps the cost independent of their
/// number.
fn found<'n>(bytes: &[u8], needles: &'n [Needle]) -> Vec<&'n Needle> {
    let mut by_start = std::collections::HashMap::<[u8; 8], Vec<&Needle>>::new();
    for needle in needles {
        if let Some(start) = needle.2.first_chunk() {
            by_start.entry(*start).or_default().push(needle);
        }
    }
    let mut hits = Vec::new();
    for (at, window) in bytes.windows(8).enumerate() {
        let Some(here) = window.first_chunk::<8>().and_then(|start| by_start.get(start)) else { continue };
        hits.extend(here.iter().filter(|needle| bytes[at..].starts_with(&needle.2)));
    }
    hits
}

/// Moves sealed values to other places: to another row, another field, another tenant. Prints the rows changed.
pub(crate) fn move_values(database: &Path) -> Result<(), CannotRun> {
    change(database).context("cannot change the database")?;
    fit_manifest(database)
}

fn change(database: &Path) -> rusqlite::Result<()> {
    let conn = Connection::open(database)?;
    // The messages are in four parts, which get: the body of another row, the head of another row, their own body as
    // head, and everything of a row of another tenant.
    for (part, sql) in [
        (
            0,
            "UPDATE message SET body = (SELECT body FROM message m WHERE m.id > message.id AND m.tenant = message.tenant ORDER BY m.id LIMIT 1)",
        ),
        (
            1,
            "UPDATE message SET head = (SELECT head FROM message m WHERE m.id > message.id AND m.tenant = message.tenant ORDER BY m.id LIMIT 1)",
        ),
        (2, "UPDATE message SET head = body"),
        (
            3,
            "UPDATE message SET (head, body, event_type) = (SELECT head, body, event_type FROM message m WHERE m.id > message.id AND m.tenant <> message.tenant ORDER BY m.id LIMIT 1)",
        ),
    ] {
        let which = "id IN (SELECT id FROM (SELECT id, row_number() OVER (ORDER BY id) AS place, count(*) OVER () AS all_of FROM message)
                     WHERE place % 4 = ?1 AND place < all_of - 8)";
        let mut ids = conn.prepare(&format!("{sql} WHERE {which} RETURNING id"))?;
        let ids: Vec<i64> = ids.query_map([part], |row| row.get(0))?.collect::<Result<_, _>>()?;
        ids.iter().for_each(|id| println!("message {id}"));
    }
    let mut ids = conn.prepare(
        "UPDATE endpoint SET sealed = coalesce((SELECT sealed FROM endpoint e WHERE e.id > endpoint.id LIMIT 1), (SELECT body FROM message LIMIT 1)) RETURNING id",
    )?;
    let ids: Vec<i64> = ids.query_map([], |row| row.get(0))?.collect::<Result<_, _>>()?;
    ids.iter().for_each(|id| println!("endpoint {id}"));
    Ok(())
}

/// Makes a backup's manifest match its changed copy. The manifest is not signed, so an attacker can do this.
fn fit_manifest(database: &Path) -> Result<(), CannotRun> {
    let manifest = database.with_file_name("manifest");
    let Ok(text) = fs::read_to_string(&manifest) else { return Ok(()) };
    let copy = fs::read(database)?;
    let fits = text.lines().map(|line| match line.split_once(' ') {
        Some(("bytes", _)) => format!("bytes {}\n", copy.len()),
        Some(("sha256", _)) => format!("sha256 {}\n", hex(&sha256(&[&copy]))),
        _ => format!("{line}\n"),
    });
    Ok(fs::write(&manifest, fits.collect::<String>())?)
}

fn percent(bytes: &[u8]) -> String {
    let kept = |byte: u8| byte.is_ascii_alphanumeric() || b"-._~".contains(&byte);
    bytes.iter().map(|byte| if kept(*byte) { char::from(*byte).to_string() } else { format!("%{byte:02X}") }).collect()
}
