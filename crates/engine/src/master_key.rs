//! Where the master key comes from: a file that the first start makes, a file or a text that the
//! operator provides, or a command that prints it.
//!
//! A source may give several keys, newest first, separated by spaces or lines: that is how a key is rotated.
//! Invariant: a key is made only when nothing is sealed yet, and a key in a file is never overwritten unless
//! the new file contains it too, or nothing needs it any more.

mod command;
mod file;
pub mod keeper;

use std::fmt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use posthaste_crypto::master::{BadMasterKey, KeyCheck, MasterKey, MasterKeyId, Masters, WrongMasterKey};
use posthaste_crypto::secret::SecretText;

pub(crate) use command::aside;

/// The file that the first start makes in the data folder.
pub const FILE: &str = "master.key";
/// The most keys of a source: a rotation needs two, an interrupted one three.
const KEYS_MAX: usize = 8;
/// The longest time of a command, which may ask another machine.
const COMMAND_WITHIN: Duration = Duration::from_secs(30);

/// Where the key comes from. Its `Debug` and `Display` forms never show the key.
#[derive(Debug)]
pub enum MasterKeySource {
    /// [`FILE`] in the data folder, made by the first start.
    Folder,
    Text {
        /// Where the text was given, such as the name of an environment variable.
        named: String,
        text: SecretText,
    },
    File(PathBuf),
    /// A program that prints the key: its name and its arguments.
    Command(Vec<String>),
}

impl fmt::Display for MasterKeySource {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Folder => write!(f, "{FILE} in the data folder"),
            Self::Text { named, .. } => f.write_str(named),
            Self::File(path) => path.display().fmt(f),
            Self::Command(command) => write!(f, "the command {}", command.join(" ")),
        }
    }
}

#[derive(Debug, thiserror::Error)]
pub enum NoMasterKey {
    #[error("cannot read the master key from {path}: {detail}; it must be a file that the user who runs this may read")]
    Unreadable { path: String, detail: String },
    #[error(
        "the master key in {path} can be read by others (mode {mode:03o}); run `chmod 600 {path}`, and rotate the \
         key if another user may have read it"
    )]
    OthersMayRead { path: String, mode: u32 },
    #[error("the master key from {from} cannot be used: {why}")]
    Bad { from: String, why: BadMasterKey },
    #[error("the master key from {from} is too long; give at most {KEYS_MAX} keys, newest first")]
    TooLong { from: String },
    #[error(
        "the data are sealed under master key {needed}, and {path} is missing; put that file back: without it they \
         cannot be read"
    )]
    Missing { path: String, needed: MasterKeyId },
    #[error("{wrong} by {from}; give the first one, or both of them, newest first, to rotate")]
    Wrong { from: String, wrong: WrongMasterKey },
    #[error("the master key is given by {from}, and there is {path} too; keep one of them")]
    Both { from: String, path: String },
    #[error("{from}, which prints the master key, {detail}; run it by hand to see why")]
    Command { from: String, detail: String },
    #[error("cannot make {path} for the master key: {detail}; the data folder must belong to the user who runs this")]
    Unwritable { path: String, detail: String },
}

/// The master keys for the data in a folder, which must exist and be used by this process alone.
/// `needed` are checks of the keys that the data are sealed under; empty when nothing is sealed yet.
///
/// Blocks while a command runs.
///
/// ```
/// use posthaste_engine::master_key::{self, MasterKeySource};
///
/// let folder = tempfile::tempdir()?;
/// let made = master_key::load(&MasterKeySource::Folder, folder.path(), &[])?;
/// // The store keeps a check of the key; the next start verifies the key with it:
/// let check = made.newest().check();
/// let again = master_key::load(&MasterKeySource::Folder, folder.path(), &[check])?;
/// assert_eq!(again.newest().id(), made.newest().id());
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub fn load(source: &MasterKeySource, folder: &Path, needed: &[KeyCheck]) -> Result<Masters, NoMasterKey> {
    let own = folder.join(FILE);
    if !matches!(source, MasterKeySource::Folder) && is_another(source, &own) {
        return Err(NoMasterKey::Both { from: source.to_string(), path: own.display().to_string() });
    }
    let text = match source {
        MasterKeySource::Folder => match (file::read(&own)?, needed.first()) {
            (Some(text), _) => text,
            (None, Some(needed)) => {
                return Err(NoMasterKey::Missing { path: own.display().to_string(), needed: needed.id() });
            }
            (None, None) => file::make(&own, &written(&[&MasterKey::generate()]))?,
        },
        MasterKeySource::Text { named, text } => return checked(parse(text.expose(), named)?, named, needed),
        MasterKeySource::File(path) => file::read(path)?.ok_or_else(|| NoMasterKey::Unreadable {
            path: path.display().to_string(),
            detail: "there is no such file".to_owned(),
        })?,
        MasterKeySource::Command(command) => command::run(command, &source.to_string(), COMMAND_WITHIN)?,
    };
    let from = source.to_string();
    checked(parse(text.expose(), &from)?, &from, needed)
}

/// Adds a new key to the folder's file, before the others: from now on keys are wrapped with it. Everything that the
/// others wrap must be wrapped again before they are deleted.
pub fn add_newer(folder: &Path, masters: Masters) -> Result<Masters, NoMasterKey> {
    let masters = masters.rotated_to(MasterKey::generate());
    file::replace(&folder.join(FILE), &written(&masters.iter().collect::<Vec<_>>()))?;
    Ok(masters)
}

/// Deletes all but the newest key from the folder's file. Backups made under the others still need them.
pub fn forget_older(folder: &Path, masters: &Masters) -> Result<(), NoMasterKey> {
    file::replace(&folder.join(FILE), &written(&[masters.newest()]))
}

/// Whether the folder has a key file that is not the configured source.
fn is_another(source: &MasterKeySource, own: &Path) -> bool {
    let the_same = |path: &PathBuf| path.canonicalize().ok() == own.canonicalize().ok();
    own.exists() && !matches!(source, MasterKeySource::File(path) if the_same(path))
}

fn written(keys: &[&MasterKey]) -> SecretText {
    const LINE_BYTES: usize = 45;
    // The full capacity at once: a string that grows leaves copies of the key in freed memory.
    let mut text = String::with_capacity(keys.len() * LINE_BYTES);
    for key in keys {
        text.push_str(key.reveal().expose());
        text.push('\n');
    }
    text.into()
}

/// The keys in a text, newest first.
fn parse(text: &str, from: &str) -> Result<Masters, NoMasterKey> {
    let bad = |why| NoMasterKey::Bad { from: from.to_owned(), why };
    let texts: Vec<&str> = text.split_whitespace().collect();
    if texts.len() > KEYS_MAX {
        return Err(NoMasterKey::TooLong { from: from.to_owned() });
    }
    let keys: Vec<MasterKey> = texts.into_iter().map(MasterKey::parse).collect::<Result<_, _>>().map_err(bad)?;
    Masters::newest_first(keys).ok_or_else(|| bad(BadMasterKey::Length { bytes: 0 }))
}

fn checked(masters: Masters, from: &str, needed: &[KeyCheck]) -> Result<Masters, NoMasterKey> {
    match needed.iter().try_for_each(|check| masters.verify(check)) {
        Ok(()) => Ok(masters),
        Err(wrong) => Err(NoMasterKey::Wrong { from: from.to_owned(), wrong }),
    }
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    fn folder() -> tempfile::TempDir {
        tempfile::tempdir().expect("a folder")
    }

    fn text_of(key: &MasterKey) -> String {
        key.reveal().expose().to_owned()
    }

    fn given(text: &str) -> MasterKeySource {
        MasterKeySource::Text { named: "POSTHASTE_MASTER_KEY".to_owned(), text: text.to_owned().into() }
    }

    pub(super) fn put(path: &Path, text: &str, mode: u32) {
        fs::write(path, text).expect("a file");
        fs::set_permissions(path, fs::Permissions::from_mode(mode)).expect("its permissions");
    }

    #[test]
    fn the_first_start_makes_a_key_that_its_owner_alone_may_read_and_later_ones_find_it() {
        let folder = folder();
        let made = load(&MasterKeySource::Folder, folder.path(), &[]).expect("made");
        let file = folder.path().join(FILE);
        assert_eq!(fs::metadata(&file).expect("it is there").permissions().mode() & 0o777, 0o600);
        assert_eq!(fs::read_to_string(&file).expect("ours"), format!("{}\n", text_of(made.newest())));
        assert_eq!(fs::read_dir(folder.path()).expect("a folder").count(), 1, "nothing else is left");
        for needed in [vec![], vec![made.newest().check()]] {
            let found = load(&MasterKeySource::Folder, folder.path(), &needed).expect("found");
            assert_eq!(found.newest().id(), made.newest().id());
        }
    }

    #[test]
    fn missing_key_file_is_not_replaced_when_data_are_sealed() {
        let folder = folder();
        let needed = MasterKey::generate();
        let refused = load(&MasterKeySource::Folder, folder.path(), &[needed.check()]).expect_err("it is missing");
        let path = folder.path().join(FILE);
        assert_eq!(
            refused.to_string(),
            format!(
                "the data are sealed under master key {}, and {} is missing; put that file back: without it they \
                 cannot be read",
                needed.id(),
                path.display()
            )
        );
        assert!(!path.exists());
    }

    #[test]
    fn wrong_key_is_refused_with_both_ids_from_every_source() {
        let (needed, other, folder) = (MasterKey::generate(), MasterKey::generate(), folder());
        let elsewhere = tempfile::NamedTempFile::new().expect("a file");
        put(elsewhere.path(), &text_of(&other), 0o400);
        let command = vec!["echo".to_owned(), text_of(&other)];
        let sources = [
            given(&text_of(&other)),
            MasterKeySource::File(elsewhere.path().to_owned()),
            MasterKeySource::Command(command),
        ];
        for source in sources {
            let refused = load(&source, folder.path(), &[needed.check()]).expect_err("another key").to_string();
            let says = format!(
                "the data are sealed under master key {}, but master key {} was given by {source}; give the first \
                 one, or both of them, newest first, to rotate",
                needed.id(),
                other.id()
            );
            assert_eq!(refused, says);
            assert!(load(&source, folder.path(), &[other.check()]).is_ok());
        }
        put(&folder.path().join(FILE), &text_of(&other), 0o600);
        let refused = load(&MasterKeySource::Folder, folder.path(), &[needed.check()]);
        assert!(matches!(refused, Err(NoMasterKey::Wrong { .. })));
    }

    #[test]
    fn a_file_that_others_may_read_is_refused_wherever_it_is() {
        let (folder, elsewhere) = (folder(), tempfile::NamedTempFile::new().expect("a file"));
        let key = text_of(&MasterKey::generate());
        for mode in [0o640, 0o604, 0o644, 0o660, 0o601] {
            for (path, source) in [
                (folder.path().join(FILE), MasterKeySource::Folder),
                (elsewhere.path().to_owned(), MasterKeySource::File(elsewhere.path().to_owned())),
            ] {
                put(&path, &key, mode);
                let refused = load(&source, folder.path(), &[]).expect_err("others may read it").to_string();
                let says = format!("can be read by others (mode {mode:03o}); run `chmod 600 {}`", path.display());
                assert!(refused.contains(&says), "{refused}");
                if path.starts_with(folder.path()) {
                    fs::remove_file(&path).expect("it is there");
                }
            }
        }
    }

    #[test]
    fn malformed_key_is_refused_and_not_shown() {
        let folder = folder();
        let cases = [
            ("", "it has 0 bytes and must have 32"),
            ("\n\n", "it has 0 bytes and must have 32"),
            ("aHVudGVyMg==", "it has 7 bytes and must have 32"),
            ("hunter2!", "it is neither base64 nor 64 hexadecimal digits"),
            ("ZXhhbXBsZSBvZiBhIGtleSwgbmV2ZXIgdXNlIGl0ISE=", "it is an example or a pass phrase"),
        ];
        for (text, says) in cases {
            put(&folder.path().join(FILE), text, 0o600);
            let refused = load(&MasterKeySource::Folder, folder.path(), &[]).expect_err("no key").to_string();
            assert!(
                refused.starts_with("the master key from master.key in the data folder cannot be used"),
                "{refused}"
            );
            assert!(refused.contains(says) && refused.contains("openssl rand -base64 32"), "{refused}");
            assert!(text.trim().is_empty() || !refused.contains(text), "{refused}");
            assert_eq!(
                fs::read_to_string(folder.path().join(FILE)).expect("it is there"),
                text,
                "the file is unchanged"
            );
        }
        let many = format!("{}\n", text_of(&MasterKey::generate())).repeat(KEYS_MAX + 1);
        let elsewhere = folder.path().join("keys");
        fs::remove_file(folder.path().join(FILE)).expect("it is there");
        for text in [many, "x".repeat(1 << 20)] {
            put(&elsewhere, &text, 0o600);
            let refused = load(&MasterKeySource::File(elsewhere.clone()), folder.path(), &[]);
            assert!(matches!(refused, Err(NoMasterKey::TooLong { .. })), "{refused:?}");
        }
    }

    #[test]
    fn given_key_is_refused_while_the_folder_has_one() {
        let folder = folder();
        let own = folder.path().join(FILE);
        let made = load(&MasterKeySource::Folder, folder.path(), &[]).expect("made");
        let refused = load(&given(&text_of(made.newest())), folder.path(), &[]).expect_err("both").to_string();
        let says = format!(
            "the master key is given by POSTHASTE_MASTER_KEY, and there is {} too; keep one of them",
            own.display()
        );
        assert_eq!(refused, says);
        assert!(load(&MasterKeySource::File(own), folder.path(), &[]).is_ok(), "it is the same file");
    }

    #[test]
    fn missing_key_file_elsewhere_is_not_made() {
        let folder = folder();
        let path = folder.path().join("elsewhere.key");
        let refused = load(&MasterKeySource::File(path.clone()), folder.path(), &[]).expect_err("missing").to_string();
        assert!(refused.contains("there is no such file"), "{refused}");
        let refused = load(&MasterKeySource::File(folder.path().to_owned()), folder.path(), &[]);
        assert!(matches!(refused, Err(NoMasterKey::Unreadable { .. })), "{refused:?}");
        assert!(!path.exists());
    }

    #[test]
    fn several_keys_are_read_newest_first() {
        let (newer, older) = (MasterKey::generate(), MasterKey::generate());
        for apart in ["\n\n ", " "] {
            let source = given(&format!("{}{apart}{}\n", text_of(&newer), text_of(&older)));
            let masters = load(&source, folder().path(), &[older.check()]).expect("the older is among them");
            assert_eq!(masters.newest().id(), newer.id());
            assert_eq!(masters.iter().count(), 2);
        }
    }

    #[test]
    fn rotation_keeps_the_old_key_until_it_is_deleted() {
        let folder = folder();
        let before = load(&MasterKeySource::Folder, folder.path(), &[]).expect("made");
        let old = before.newest().check();
        let during = add_newer(folder.path(), before).expect("added");
        let new = during.newest().check();
        assert_ne!(new.id(), old.id());
        for needed in [vec![old], vec![old, new], vec![new]] {
            let found = load(&MasterKeySource::Folder, folder.path(), &needed).expect("both are there");
            assert_eq!(found.newest().id(), new.id());
        }
        forget_older(folder.path(), &during).expect("forgotten");
        assert!(load(&MasterKeySource::Folder, folder.path(), &[new]).is_ok());
        assert!(matches!(load(&MasterKeySource::Folder, folder.path(), &[old]), Err(NoMasterKey::Wrong { .. })));
        let mode = fs::metadata(folder.path().join(FILE)).expect("it is there").permissions().mode();
        assert_eq!((mode & 0o777, fs::read_dir(folder.path()).expect("a folder").count()), (0o600, 1));
    }

    #[test]
    fn a_printed_source_shows_no_key() {
        let key = text_of(&MasterKey::generate());
        let source = given(&key);
        assert!(!format!("{source:?} {source}").contains(&key));
    }
}
