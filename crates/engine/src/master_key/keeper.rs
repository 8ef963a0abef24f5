//! Looks after the master key while the server runs: brings a newer one when it is to be rotated, and lets the
//! older go when nothing needs it.
//!
//! Invariant: a newer key is on the disk of its source before anybody uses it, and the older stays beside it
//! until nothing needs it.

use std::path::{Path, PathBuf};

use posthaste_crypto::master::{MasterKey, MasterKeyId, Masters};

use super::{FILE, NoMasterKey, Source, add_newer, command, forget_older, load};

/// Why the master key cannot be rotated, and what to do.
#[derive(Debug, thiserror::Error)]
pub enum NoNewerKey {
    /// Where it comes from cannot be asked again.
    #[error(
        "the master key is given by {from}, which is read at the start: give it the new key and behind it the old \
         one, and restart; it is rotated while the server serves"
    )]
    ReadAtTheStart {
        /// Where it comes from.
        from: String,
    },
    /// Where it comes from gives the key that is in use.
    #[error(
        "{from} gives no newer master key than {current}; put one before it, keep the old one behind it, and ask again"
    )]
    NoneNewer {
        /// Where it comes from.
        from: String,
        /// The key in use.
        current: MasterKeyId,
    },
    /// The key in use is not among those that are given.
    #[error(
        "{from} does not give master key {current}, which is in use; put it back behind the new one, and ask again"
    )]
    OlderMissing {
        /// Where they come from.
        from: String,
        /// The key in use.
        current: MasterKeyId,
    },
    /// It could not be read or written.
    #[error(transparent)]
    Key(#[from] NoMasterKey),
}

/// Looks after the master key in its source.
#[derive(Clone, Debug)]
pub struct Keeper {
    folder: PathBuf,
    /// What can be asked again.
    again: Option<Again>,
    named: String,
}

#[derive(Clone, Debug)]
enum Again {
    Folder,
    File(PathBuf),
    Command(Vec<String>),
}

impl Keeper {
    /// Looks after the key of the data in a folder, which comes from there.
    pub fn new(source: &Source, folder: &Path) -> Self {
        let again = match source {
            Source::Folder => Some(Again::Folder),
            Source::Text { .. } => None,
            Source::File(path) => Some(Again::File(path.clone())),
            Source::Command(words) => Some(Again::Command(words.clone())),
        };
        Self { folder: folder.to_owned(), again, named: source.to_string() }
    }

    /// Where the key comes from, in words.
    pub fn named(&self) -> &str {
        &self.named
    }

    /// A newer key than the one in use: made where the first was, brought from elsewhere otherwise. Blocks.
    pub fn newer(&self, current: MasterKeyId) -> Result<MasterKey, NoNewerKey> {
        let given = self.given(current)?;
        match (given.newest().id() == current, &self.again) {
            (true, Some(Again::Folder)) => Ok(add_newer(&self.folder, given)?.into_newest()),
            (true, _) => Err(NoNewerKey::NoneNewer { from: self.named.clone(), current }),
            // One that was brought before and not taken up.
            (false, _) => Ok(given.into_newest()),
        }
    }

    /// Lets go of all keys but this one, where they are ours to let go; says whether there were others. Blocks.
    pub fn forget_older(&self, newest: MasterKeyId) -> Result<bool, NoNewerKey> {
        if !matches!(self.again, Some(Again::Folder)) {
            return Ok(false);
        }
        let given = self.given(newest)?;
        let forgets = given.newest().id() == newest && given.iter().count() > 1;
        if forgets {
            forget_older(&self.folder, &given)?;
        }
        Ok(forgets)
    }

    /// What the source gives now; the key in use must be among it.
    fn given(&self, current: MasterKeyId) -> Result<Masters, NoNewerKey> {
        let source = match &self.again {
            None => return Err(NoNewerKey::ReadAtTheStart { from: self.named.clone() }),
            Some(Again::Folder) => Source::Folder,
            Some(Again::File(path)) => Source::File(path.clone()),
            Some(Again::Command(words)) => Source::Command(words.clone()),
        };
        let own = self.folder.join(FILE);
        // One that is missing must not be made: the data need the one that was there.
        if matches!(source, Source::Folder) && !own.exists() {
            return Err(NoMasterKey::Missing { path: own.display().to_string(), needed: current }.into());
        }
        let given = load(&source, &self.folder, &[])?;
        if given.iter().any(|key| key.id() == current) {
            Ok(given)
        } else {
            Err(NoNewerKey::OlderMissing { from: self.named.clone(), current })
        }
    }
}

/// Runs something that waits for a disk or a command where nobody waits for it.
pub(crate) async fn aside<T: Send + 'static>(keeper: &Keeper, run: impl FnOnce(&Keeper) -> T + Send + 'static) -> T {
    let keeper = keeper.clone();
    command::aside(move || run(&keeper)).await
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    fn put(path: &Path, keys: &[&MasterKey]) {
        let text: String = keys.iter().map(|key| format!("{}\n", key.reveal().expose())).collect();
        fs::write(path, text).expect("a file");
        fs::set_permissions(path, fs::Permissions::from_mode(0o600)).expect("its permissions");
    }

    #[test]
    fn the_folders_own_key_is_followed_by_one_that_is_made_and_forgotten_on_request() {
        let folder = tempfile::tempdir().expect("a folder");
        let old = load(&Source::Folder, folder.path(), &[]).expect("made").newest().check();
        let keeper = Keeper::new(&Source::Folder, folder.path());
        let newer = keeper.newer(old.id()).expect("made");
        assert_ne!(newer.id(), old.id());
        let again = keeper.newer(old.id()).expect("the one that was made");
        assert_eq!(again.id(), newer.id(), "who asks again before it is used gets the same");
        assert!(!keeper.forget_older(old.id()).expect("nothing to do"), "the older is not the newest");
        let kept = load(&Source::Folder, folder.path(), &[newer.check(), old]).expect("both are there");
        assert_eq!(kept.newest().id(), newer.id());
        assert!(keeper.forget_older(newer.id()).expect("forgotten"));
        assert!(!keeper.forget_older(newer.id()).expect("nothing to do"));
        assert!(load(&Source::Folder, folder.path(), &[old]).is_err());
    }

    #[test]
    fn a_key_that_is_missing_is_not_made_anew_by_a_rotation() {
        let folder = tempfile::tempdir().expect("a folder");
        let current = MasterKey::generate().id();
        let keeper = Keeper::new(&Source::Folder, folder.path());
        let refused = keeper.newer(current).expect_err("it is missing");
        assert!(matches!(refused, NoNewerKey::Key(NoMasterKey::Missing { .. })), "{refused}");
        assert!(!folder.path().join(FILE).exists());
    }

    #[test]
    fn a_newer_key_from_elsewhere_is_taken_if_the_old_one_is_behind_it() {
        let (folder, elsewhere) = (tempfile::tempdir().expect("a folder"), tempfile::tempdir().expect("a folder"));
        let [old, new] = [MasterKey::generate(), MasterKey::generate()];
        let path = elsewhere.path().join("key");
        let keeper = Keeper::new(&Source::File(path.clone()), folder.path());
        put(&path, &[&old]);
        let refused = keeper.newer(old.id()).expect_err("there is none").to_string();
        assert!(refused.contains("gives no newer master key than"), "{refused}");
        put(&path, &[&new]);
        let refused = keeper.newer(old.id()).expect_err("the old one is needed").to_string();
        assert!(refused.contains("put it back behind the new one"), "{refused}");
        put(&path, &[&new, &old]);
        assert_eq!(keeper.newer(old.id()).expect("both are there").id(), new.id());
        assert!(!keeper.forget_older(new.id()).expect("it is not ours"), "what somebody looks after stays");
    }

    #[test]
    fn a_key_from_the_environment_is_rotated_by_a_restart() {
        let key = MasterKey::generate();
        let source = Source::Text { named: "POSTHASTE_MASTER_KEY".to_owned(), text: key.reveal() };
        let keeper = Keeper::new(&source, Path::new("."));
        let refused = keeper.newer(key.id()).expect_err("it is read at the start").to_string();
        assert!(refused.starts_with("the master key is given by POSTHASTE_MASTER_KEY, which is read"), "{refused}");
    }
}
