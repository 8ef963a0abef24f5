//! Manages the master key in its source while the server runs: provides a newer key for a rotation, and deletes the
//! older one when nothing needs it.
//!
//! Invariant: a newer key is durable in its source before it is used, and the older stays beside it until nothing
//! needs it.

use std::path::{Path, PathBuf};

use posthaste_crypto::master::{MasterKey, MasterKeyId, Masters};

use super::{FILE, MasterKeySource, NoMasterKey, add_newer, forget_older, load};

/// Why the master key cannot be rotated, and what to do.
#[derive(Debug, thiserror::Error)]
pub enum NoNewerKey {
    /// The source is read at the start only.
    #[error(
        "the master key is given by {from}, which is read at the start: give it the new key and behind it the old \
         one, and restart; the key is then rotated while the server serves"
    )]
    ReadAtTheStart { from: String },
    #[error(
        "{from} gives no newer master key than {current}; put one before it, keep the old one behind it, and ask again"
    )]
    NoneNewer { from: String, current: MasterKeyId },
    #[error(
        "{from} does not give master key {current}, which is in use; put it back behind the new one, and ask again"
    )]
    OlderMissing { from: String, current: MasterKeyId },
    #[error(transparent)]
    Key(#[from] NoMasterKey),
}

/// Reads the master key's source again, and changes the folder's own file.
#[derive(Debug)]
pub struct Keeper {
    folder: PathBuf,
    /// The source; `None` for a text, which cannot be read again.
    source: Option<MasterKeySource>,
    pub(crate) named: String,
}

impl Keeper {
    pub fn new(source: &MasterKeySource, folder: &Path) -> Self {
        let named = source.to_string();
        let source = match source {
            MasterKeySource::Folder => Some(MasterKeySource::Folder),
            MasterKeySource::Text { .. } => None,
            MasterKeySource::File(path) => Some(MasterKeySource::File(path.clone())),
            MasterKeySource::Command(words) => Some(MasterKeySource::Command(words.clone())),
        };
        Self { folder: folder.to_owned(), source, named }
    }

    /// A newer key than the one in use: made for the folder's own file, otherwise the newest of the source. Blocks.
    pub fn newer(&self, current: MasterKeyId) -> Result<MasterKey, NoNewerKey> {
        let given = self.given(current)?;
        match (given.newest().id() == current, &self.source) {
            (true, Some(MasterKeySource::Folder)) => Ok(add_newer(&self.folder, given)?.into_newest()),
            (true, _) => Err(NoNewerKey::NoneNewer { from: self.named.clone(), current }),
            // A key that was provided before and is not in use yet.
            (false, _) => Ok(given.into_newest()),
        }
    }

    /// Deletes all keys but this one from the folder's own file; other sources belong to the operator. Returns whether
    /// there were others. Blocks.
    pub fn forget_older(&self, newest: MasterKeyId) -> Result<bool, NoNewerKey> {
        if !matches!(self.source, Some(MasterKeySource::Folder)) {
            return Ok(false);
        }
        let given = self.given(newest)?;
        let forgets = given.newest().id() == newest && given.iter().count() > 1;
        if forgets {
            forget_older(&self.folder, &given)?;
        }
        Ok(forgets)
    }

    /// The keys that the source gives now; the key in use must be among them.
    fn given(&self, current: MasterKeyId) -> Result<Masters, NoNewerKey> {
        let Some(source) = &self.source else {
            return Err(NoNewerKey::ReadAtTheStart { from: self.named.clone() });
        };
        let own = self.folder.join(FILE);
        // A missing file must not be made: the data need the key that was in it.
        if matches!(source, MasterKeySource::Folder) && !own.exists() {
            return Err(NoMasterKey::Missing { path: own.display().to_string(), needed: current }.into());
        }
        let given = load(source, &self.folder, &[])?;
        if given.iter().any(|key| key.id() == current) {
            Ok(given)
        } else {
            Err(NoNewerKey::OlderMissing { from: self.named.clone(), current })
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::master_key::written;

    fn put(path: &Path, keys: &[&MasterKey]) {
        crate::master_key::tests::put(path, written(keys).expose(), 0o600);
    }

    #[test]
    fn rotation_of_the_folders_own_key_makes_a_new_one_and_deletes_the_old_on_request() {
        let folder = tempfile::tempdir().expect("a folder");
        let old = load(&MasterKeySource::Folder, folder.path(), &[]).expect("made").newest().check();
        let keeper = Keeper::new(&MasterKeySource::Folder, folder.path());
        let newer = keeper.newer(old.id()).expect("made");
        assert_ne!(newer.id(), old.id());
        let again = keeper.newer(old.id()).expect("the one that was made");
        assert_eq!(again.id(), newer.id(), "a second request before the key is used gets the same key");
        assert!(!keeper.forget_older(old.id()).expect("nothing to do"), "the older is not the newest");
        let kept = load(&MasterKeySource::Folder, folder.path(), &[newer.check(), old]).expect("both are there");
        assert_eq!(kept.newest().id(), newer.id());
        assert!(keeper.forget_older(newer.id()).expect("forgotten"));
        assert!(!keeper.forget_older(newer.id()).expect("nothing to do"));
        assert!(load(&MasterKeySource::Folder, folder.path(), &[old]).is_err());
    }

    #[test]
    fn rotation_does_not_replace_a_missing_key_file() {
        let folder = tempfile::tempdir().expect("a folder");
        let current = MasterKey::generate().id();
        let keeper = Keeper::new(&MasterKeySource::Folder, folder.path());
        let refused = keeper.newer(current).expect_err("it is missing");
        assert!(matches!(refused, NoNewerKey::Key(NoMasterKey::Missing { .. })), "{refused}");
        assert!(!folder.path().join(FILE).exists());
    }

    #[test]
    fn a_newer_key_from_elsewhere_is_taken_if_the_old_one_is_behind_it() {
        let (folder, elsewhere) = (tempfile::tempdir().expect("a folder"), tempfile::tempdir().expect("a folder"));
        let [old, new] = [MasterKey::generate(), MasterKey::generate()];
        let path = elsewhere.path().join("key");
        let keeper = Keeper::new(&MasterKeySource::File(path.clone()), folder.path());
        put(&path, &[&old]);
        let refused = keeper.newer(old.id()).expect_err("there is none").to_string();
        assert!(refused.contains("gives no newer master key than"), "{refused}");
        put(&path, &[&new]);
        let refused = keeper.newer(old.id()).expect_err("the old one is needed").to_string();
        assert!(refused.contains("put it back behind the new one"), "{refused}");
        put(&path, &[&new, &old]);
        assert_eq!(keeper.newer(old.id()).expect("both are there").id(), new.id());
        assert!(!keeper.forget_older(new.id()).expect("it is not ours"), "the operator's own file is not changed");
    }

    #[test]
    fn a_key_from_the_environment_is_rotated_by_a_restart() {
        let key = MasterKey::generate();
        let source = MasterKeySource::Text { named: "POSTHASTE_MASTER_KEY".to_owned(), text: key.reveal() };
        let keeper = Keeper::new(&source, Path::new("."));
        let refused = keeper.newer(key.id()).expect_err("it is read at the start").to_string();
        assert!(refused.starts_with("the master key is given by POSTHASTE_MASTER_KEY, which is read"), "{refused}");
    }
}
