//! The source of the master key: at most one of three settings may name one.

use std::path::PathBuf;

use posthaste_engine::master_key::MasterKeySource;

use super::layer::{Layers, Setting};

/// Reads the source, by default a file in the data folder. More than one is a complaint.
pub(super) fn read(layers: &mut Layers) -> Option<MasterKeySource> {
    let text = |setting: &Setting| {
        // Errors name the setting as it was written.
        let named = setting.source().to_owned();
        let text = setting.text().to_owned();
        (!text.is_empty()).then(|| MasterKeySource::Text { named, text: text.into() })
    };
    let file = |setting: &Setting| match setting.text() {
        "" => None,
        path => Some(MasterKeySource::File(PathBuf::from(path))),
    };
    let command =
        |setting: &Setting| Some(setting.texts()).filter(|words| !words.is_empty()).map(MasterKeySource::Command);
    let mut given = [
        given(layers, "master_key", text),
        given(layers, "master_key_file", file),
        given(layers, "master_key_command", command),
    ]
    .into_iter()
    .flatten();
    let Some((named, source)) = given.next() else { return Some(MasterKeySource::Folder) };
    let Some((other, _)) = given.next() else { return Some(source) };
    layers.complain(format!("{named} and {other} are both set: keep one"));
    None
}

fn given(
    layers: &mut Layers,
    key: &str,
    read: impl FnOnce(&Setting) -> Option<MasterKeySource>,
) -> Option<(String, MasterKeySource)> {
    layers.get(key, |setting| Ok(read(setting).map(|source| (setting.source().to_owned(), source))))?
}
