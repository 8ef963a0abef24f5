//! The pending table has no indexes but the agreed ones: at five million pending deliveries one more index with keys in
//! random order makes a delivery seven times as expensive. A fresh row without a collapse key is in none of the agreed
//! ones.

use super::source::{Complaint, SourceFile};

/// The indexes that exist for rows that are late, overflowed or have a collapse key (ADR 7). Adding one
/// needs an ADR with a figure.
const AGREED: &[&str] = &["delivery_late", "delivery_spill", "delivery_collapse"];

/// An index of the pending table, and where it is created.
pub(super) struct Index {
    at: usize,
    pub(super) name: String,
}

/// The pending table gets no index that is not in [`AGREED`].
pub(super) fn check_indexes(file: &SourceFile) -> Vec<Complaint> {
    pending_indexes(file)
        .into_iter()
        .filter(|index| !AGREED.contains(&index.name.as_str()))
        .map(|index| {
            let what = format!("the pending table gets the index {}", index.name);
            let instead = "write an ADR with its cost at 5 million pending, then add it to xtask/src/tidy/indexes.rs";
            file.complaint(index.at, what, instead)
        })
        .collect()
}

pub(super) fn pending_indexes(file: &SourceFile) -> Vec<Index> {
    if !file.is_in(&["crates/store/"]) || !(file.is("sql") || file.is("rs")) {
        return Vec::new();
    }
    let words = words(&file.text);
    let mut found = Vec::new();
    for (place, (at, word)) in words.iter().enumerate() {
        if word == "create" {
            let name = index_on_pending(words[place + 1..].iter().map(|(_, word)| word.as_str()));
            found.extend(name.map(|name| Index { at: *at, name }));
        }
    }
    found
}

/// The index's name, if the words after `create` create one on the pending table.
fn index_on_pending<'a>(words: impl Iterator<Item = &'a str>) -> Option<String> {
    let mut words = words.filter(|word| !["unique", "if", "not", "exists"].contains(word));
    if words.next()? != "index" {
        return None;
    }
    let name = words.next()?;
    // An index without a name: `on` follows at once.
    let (name, table) = if name == "on" { ("without a name", words.next()?) } else { (name, words.nth(1)?) };
    (table == "delivery").then(|| name.to_owned())
}

/// Names and keywords in lower case, with their positions.
fn words(text: &str) -> Vec<(usize, String)> {
    let separates = |c: char| !c.is_alphanumeric() && c != '_';
    let mut end = 0;
    let words = text.split_inclusive(separates).map(|piece| {
        end += piece.len();
        (end - piece.len(), piece.trim_end_matches(separates).to_lowercase())
    });
    words.filter(|(_, word)| !word.is_empty()).collect()
}

#[cfg(test)]
mod tests {
    use super::super::source::testing::check;
    use super::*;

    #[test]
    fn only_new_indexes_of_the_pending_table_are_reported() {
        check(check_indexes, "crates/store/src/schema.sql", "\nCREATE INDEX by_dest ON delivery(dest, id);", &[2]);
        let in_code = "\"create unique index if not exists x\n on delivery (id)\"";
        check(check_indexes, "crates/store/src/sqlite.rs", in_code, &[1]);
        check(check_indexes, "crates/store/src/schema.sql", "CREATE INDEX ON delivery (due);", &[1]);

        let agreed = "CREATE INDEX delivery_late ON delivery(shard, due) WHERE state = 1;";
        check(check_indexes, "crates/store/src/schema.sql", agreed, &[]);
        check(check_indexes, "crates/store/src/schema.sql", "CREATE INDEX dead_by_cause ON dead(cause);", &[]);
        check(check_indexes, "crates/store/src/schema.sql", "CREATE TABLE delivery (id INTEGER PRIMARY KEY);", &[]);
    }
}
