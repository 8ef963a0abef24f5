//! The project's rules that no compiler and no lint checks: which crate may depend on which, what only the
//! connector may do, how a test is written, and that links have targets.
//!
//! Each rule is a small function from a file to complaints, with a test of something that it
//! must report. A complaint names the place, what is wrong and what to do. To add a rule, write it
//! beside the others in `tidy/` and add it to [`RULES`].

use std::path::Path;

use anyhow::{Result, bail};

mod arrows;
mod indexes;
mod links;
mod logs;
mod modules;
mod plain;
mod purity;
mod sockets;
mod source;
mod tasks;
mod testing;
mod wording;

use source::{Complaint, SourceFile};

/// Every rule. Each checks one file at a time.
const RULES: &[fn(&SourceFile) -> Vec<Complaint>] = &[
    arrows::check_arrows,
    arrows::check_foreign_crates,
    indexes::check_indexes,
    links::check_links,
    logs::check_log_lines,
    modules::check_module_docs,
    modules::check_no_mod_rs,
    plain::check_doc_comments,
    plain::check_names,
    plain::check_words,
    purity::check_purity,
    purity::check_unsafe,
    sockets::check_sockets,
    tasks::check_select_is_biased,
    tasks::check_spawn,
    testing::check_attributes,
    testing::check_sleep,
    wording::check_hosts,
    wording::check_owners,
    wording::check_workplace,
];

/// Applies every rule to every file of the workspace.
pub(crate) fn run(root: &Path) -> Result<()> {
    let files = source::read_all(root)?;
    let complaints: Vec<_> = files.iter().flat_map(|file| RULES.iter().flat_map(move |rule| rule(file))).collect();
    complaints.iter().for_each(|complaint| println!("{complaint}"));
    let indexes: Vec<_> = files.iter().flat_map(indexes::pending_indexes).map(|index| index.name).collect();
    println!(
        "tidy: {} files, {} rules; indexes of the pending table: {}",
        files.len(),
        RULES.len(),
        indexes.join(", ")
    );
    if !complaints.is_empty() {
        bail!("{} complaints", complaints.len());
    }
    Ok(())
}
