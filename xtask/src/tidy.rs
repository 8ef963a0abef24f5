//! The project's rules that no compiler and no lint checks: which crate may depend on which, what only the
//! connector may do, how a test is written, and that links have targets.
//!
//! Each rule is a small function from a file to complaints, with a test of something that it
//! must report. A complaint names the place, what is wrong and what to do. To add a rule, write it
//! beside the others in `tidy/` and add it to [`RULES`].

use std::path::Path;

use anyhow::{Result, bail};

mod arrows;
mod code;
mod indexes;
mod links;
mod logs;
mod source;
mod wording;

use source::{Complaint, SourceFile};

/// Every rule that checks one file at a time.
const RULES: &[fn(&SourceFile) -> Vec<Complaint>] = &[
    arrows::check_arrows,
    code::check_attributes,
    code::check_forbidden,
    code::check_modules,
    code::check_purity,
    code::check_select_is_biased,
    indexes::check_indexes,
    links::check_links,
    logs::check_log_lines,
    wording::check_doc_comments,
    wording::check_names,
    wording::check_owners,
    wording::check_words,
];

pub(crate) fn run(root: &Path) -> Result<()> {
    let files = source::read_all(root)?;
    let mut complaints: Vec<_> = files.iter().flat_map(|file| RULES.iter().flat_map(move |rule| rule(file))).collect();
    complaints.extend(wording::check_type_names(&files));
    complaints.iter().for_each(|complaint| println!("{complaint}"));
    let indexes: Vec<_> = files.iter().flat_map(indexes::pending_indexes).map(|index| index.name).collect();
    println!(
        "tidy: {} files, {} rules; indexes of the pending table: {}",
        files.len(),
        RULES.len() + 1,
        indexes.join(", ")
    );
    if !complaints.is_empty() {
        bail!("{} complaints", complaints.len());
    }
    Ok(())
}
