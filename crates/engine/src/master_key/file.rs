//! The master key's file: readable by its owner alone, and never partly written. It is written under a temporary
//! name, synced to the disk, and only then gets its own name.

use std::fs::{self, File, OpenOptions};
use std::io::{self, ErrorKind, Read, Write};
use std::os::unix::fs::{OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};

use posthaste_crypto::random;
use posthaste_crypto::secret::SecretText;

use super::NoMasterKey;

const MODE: u32 = 0o600;
/// The permission bits of users other than the owner.
const OTHERS: u32 = 0o077;
/// The longest text of a source; eight keys are far shorter.
pub(super) const BYTES_MAX: usize = 4_096;

/// The text of a file; `None` if it is missing.
pub(super) fn read(path: &Path) -> Result<Option<SecretText>, NoMasterKey> {
    let unreadable =
        |error: &io::Error| NoMasterKey::Unreadable { path: path.display().to_string(), detail: error.to_string() };
    // The permissions are read from the open file, so that they are those of the file that is read.
    let file = match File::open(path) {
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(None),
        opened => opened.map_err(|error| unreadable(&error))?,
    };
    let metadata = file.metadata().map_err(|error| unreadable(&error))?;
    if !metadata.is_file() {
        return Err(unreadable(&io::Error::other("it is not a file")));
    }
    let mode = metadata.permissions().mode() & 0o777;
    if mode & OTHERS != 0 {
        return Err(NoMasterKey::OthersMayRead { path: path.display().to_string(), mode });
    }
    text(file, &path.display().to_string()).map_err(|error| unreadable(&error))?.map(Some)
}

/// Reads a text of at most [`BYTES_MAX`] bytes.
pub(super) fn text(from: impl Read, named: &str) -> io::Result<Result<SecretText, NoMasterKey>> {
    // The full capacity at once: a string that grows leaves copies of the key in freed memory.
    let mut text = String::with_capacity(BYTES_MAX + 1);
    let read = from.take(BYTES_MAX as u64 + 1).read_to_string(&mut text);
    let text = SecretText::from(text);
    if read? > BYTES_MAX { Ok(Err(NoMasterKey::TooLong { from: named.to_owned() })) } else { Ok(Ok(text)) }
}

/// Makes the file and returns its text. If another process has made it meanwhile, that file is kept and its text is
/// returned.
pub(super) fn make(path: &Path, text: &SecretText) -> Result<SecretText, NoMasterKey> {
    let made = write_beside(path, text).and_then(|new| {
        // A hard link fails if the name exists; a rename would replace the file.
        let linked = match fs::hard_link(&new, path) {
            Err(error) if error.kind() == ErrorKind::AlreadyExists => Ok(()),
            linked => linked,
        };
        remove(&new)?;
        linked?;
        sync_folder_of(path)
    });
    made.map_err(|error| unwritable(path, &error))?;
    read(path)?.ok_or_else(|| unwritable(path, &io::Error::other("it was made and is missing again")))
}

pub(super) fn replace(path: &Path, text: &SecretText) -> Result<(), NoMasterKey> {
    let replaced = write_beside(path, text).and_then(|new| fs::rename(&new, path)).and_then(|()| sync_folder_of(path));
    replaced.map_err(|error| unwritable(path, &error))
}

/// Writes the text to a file beside `path`, under a unique name, and syncs it.
fn write_beside(path: &Path, text: &SecretText) -> io::Result<PathBuf> {
    remove_left(path)?;
    let suffix: String = random::bytes::<8>().iter().map(|byte| format!("{byte:02x}")).collect();
    let new = PathBuf::from(format!("{}{suffix}", left_by(path).display()));
    let mut file = OpenOptions::new().write(true).create_new(true).mode(MODE).open(&new)?;
    file.write_all(text.expose().as_bytes())?;
    file.sync_all()?;
    Ok(new)
}

/// Removes temporary files of processes that ended before they renamed them.
fn remove_left(path: &Path) -> io::Result<()> {
    let left = left_by(path);
    let (Some(folder), Some(prefix)) = (left.parent(), left.file_name()) else { return Ok(()) };
    for entry in fs::read_dir(folder)? {
        let entry = entry?;
        if entry.file_name().as_encoded_bytes().starts_with(prefix.as_encoded_bytes()) {
            remove(&entry.path())?;
        }
    }
    Ok(())
}

fn remove(path: &Path) -> io::Result<()> {
    match fs::remove_file(path) {
        Err(error) if error.kind() == ErrorKind::NotFound => Ok(()),
        removed => removed,
    }
}

/// The prefix of the names of temporary files.
fn left_by(path: &Path) -> PathBuf {
    PathBuf::from(format!("{}-new-", path.display()))
}

fn sync_folder_of(path: &Path) -> io::Result<()> {
    let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."));
    File::open(folder)?.sync_all()
}

fn unwritable(path: &Path, error: &io::Error) -> NoMasterKey {
    NoMasterKey::Unwritable { path: path.display().to_string(), detail: error.to_string() }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn text(text: &str) -> SecretText {
        text.to_owned().into()
    }

    #[test]
    fn make_never_overwrites_an_existing_file() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("master.key");
        assert_eq!(make(&path, &text("first")).expect("made").expose(), "first");
        assert_eq!(make(&path, &text("second")).expect("read").expose(), "first");
    }

    #[test]
    fn temporary_files_of_an_interrupted_start_are_removed() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("master.key");
        fs::write(folder.path().join("master.key-new-0123"), "hal").expect("a file");
        fs::write(folder.path().join("master.keys"), "of others").expect("a file");
        assert!(read(&path).expect("it is missing").is_none());
        make(&path, &text("whole")).expect("made");
        let mut names: Vec<_> = fs::read_dir(folder.path())
            .expect("a folder")
            .map(|entry| entry.expect("a file").file_name().into_string().expect("UTF-8"))
            .collect();
        names.sort();
        assert_eq!(names, ["master.key", "master.keys"]);
    }

    #[test]
    fn starts_at_the_same_time_agree_on_one_key() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("master.key");
        let start = |number: usize| make(&path, &text(&format!("key {number}")));
        let found: Vec<_> = std::thread::scope(|scope| {
            let threads: Vec<_> = (0..8).map(|number| scope.spawn(move || start(number))).collect();
            threads.into_iter().map(|thread| thread.join().expect("no panic")).collect()
        });
        let stands = fs::read_to_string(&path).expect("one was made");
        let agreed = found.iter().flatten().count();
        assert!(agreed > 0 && found.iter().flatten().all(|found| found.expose() == stands), "{found:?}");
    }

    #[test]
    fn missing_folder_is_reported_with_its_path() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("nowhere").join("master.key");
        let refused = make(&path, &text("x")).expect_err("no folder").to_string();
        assert!(refused.starts_with(&format!("cannot make {}", path.display())), "{refused}");
    }
}
