//! Shows the progress of `audit verify`, and its result as text or as JSON.

use std::io::{IsTerminal, Write, stderr};
use std::time::Duration;

use anyhow::Result;
use posthaste_store::audit::AuditReport;
use posthaste_store::sqlite::audit::{AuditProgress, Trust, Verified};
use serde_json::json;
use tokio::time::Instant;

use crate::say::say;

/// The least time between two redraws of the progress bar.
const REDRAW_EVERY: Duration = Duration::from_millis(100);
const BAR_WIDTH: usize = 30;

/// A progress bar on stderr; nothing if stderr is no terminal.
pub(crate) struct ProgressBar {
    is_terminal: bool,
    drawn: Option<Instant>,
    began: Instant,
}

impl ProgressBar {
    pub(crate) fn new() -> Self {
        Self { is_terminal: stderr().is_terminal(), drawn: None, began: Instant::now() }
    }

    pub(crate) fn show(&mut self, progress: AuditProgress) {
        if self.is_terminal && self.drawn.is_none_or(|drawn| drawn.elapsed() >= REDRAW_EVERY) {
            let line = bar(progress, self.began.elapsed());
            // A bar that cannot be drawn is not an error.
            let _ = write!(stderr(), "\r\x1b[K{line}");
            self.drawn = Some(Instant::now());
        }
    }

    pub(crate) fn clear(&self) {
        if self.drawn.is_some() {
            let _ = write!(stderr(), "\r\x1b[K");
        }
    }
}

fn bar(progress: AuditProgress, took: Duration) -> String {
    let AuditProgress { done, of } = progress;
    let share = if of == 0 { 1.0 } else { (done as f64 / of as f64).min(1.0) };
    #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "between 0 and the bar's width")]
    let full = (share * BAR_WIDTH as f64) as usize;
    let per_second = done as f64 / took.as_secs_f64().max(0.001);
    let left = (of.saturating_sub(done)) as f64 / per_second.max(1.0);
    format!("[{:<BAR_WIDTH$}] {done} of {of} rows, {left:.0} s to go", "#".repeat(full))
}

pub(super) fn words(verified: &Verified, trust: &Trust) -> Result<()> {
    let report = &verified.report;
    for finding in &report.findings {
        say!("FOUND  {finding}")?;
    }
    if report.found > report.findings.len() as u64 {
        say!("FOUND  and {} more", report.found - report.findings.len() as u64)?;
    }
    say!("rows         {}", rows(report))?;
    let AuditReport { ends, ends_expired, ends_erased, .. } = report;
    say!("deliveries   {ends} ended; of their outcomes retention deleted {ends_expired}, erasures {ends_erased}")?;
    say!("checkpoints  {}", checkpoints(report))?;
    say!("public key   {}", key(verified, trust))?;
    say!("covered      {}", covered(report, trust))?;
    match report.found {
        0 => say!("\nNothing was changed."),
        1 => say!("\n1 finding: the data differs from what was written."),
        found => say!("\n{found} findings: the data differs from what was written."),
    }
}

fn rows(report: &AuditReport) -> String {
    let AuditReport { first, last, rows, entries, expired_upto, .. } = report;
    match (rows, expired_upto) {
        (0, _) => "none".to_owned(),
        (_, 0) => format!("{first} to {last}: {rows}, with {entries} entries"),
        (_, _) => {
            format!(
                "{first} to {last}: {rows}, with {entries} entries; rows up to {expired_upto} were deleted by retention"
            )
        }
    }
}

fn checkpoints(report: &AuditReport) -> String {
    let AuditReport { checkpoints, signed, past, .. } = report;
    let past = if *past == 0 { String::new() } else { format!("; {past} are for rows that retention deleted") };
    match checkpoints {
        0 => format!("none that matches{past}"),
        _ => format!("{checkpoints} match, the last is for row {signed}{past}"),
    }
}

fn key(verified: &Verified, trust: &Trust) -> String {
    match (&verified.public_key, &trust.public_key) {
        (None, _) => "none".to_owned(),
        (Some(key), Some(_)) => format!("{}, as you gave it", key.id()),
        (Some(key), None) => {
            format!(
                "{}, from the database: a writer of the file can replace it; pass the one you kept with --public-key",
                key.id()
            )
        }
    }
}

fn covered(report: &AuditReport, trust: &Trust) -> String {
    if trust.checkpoints.is_empty() {
        return "no rows: no checkpoint was given. A writer of the file can cut off its end unseen; pass a kept \
                checkpoint with --checkpoint"
            .to_owned();
    }
    match report.vouched {
        0 => "no rows: the given checkpoints match none that is left".to_owned(),
        row if row == report.last => format!("all rows, up to {row}, by the given checkpoints"),
        row => format!("rows up to {row}, by the given checkpoints; later rows only by those in the database"),
    }
}

pub(super) fn json(verified: &Verified, trust: &Trust) -> Result<()> {
    let report = &verified.report;
    let findings: Vec<_> =
        report.findings.iter().map(|finding| json!({ "kind": finding.kind(), "text": finding.to_string() })).collect();
    let object = json!({
        "clean": report.is_clean(),
        "found": report.found,
        "findings": findings,
        "rows": { "first": report.first, "last": report.last, "read": report.rows, "let_go": report.expired_upto },
        "entries": report.entries,
        "ends": report.ends,
        "ends_let_go": report.ends_expired,
        "ends_erased": report.ends_erased,
        "checkpoints": { "fit": report.checkpoints, "past": report.past, "last_row": report.signed },
        "vouched_row": report.vouched,
        "public_key": verified.public_key.map(|key| key.to_string()),
        "public_key_from": if trust.public_key.is_some() { "given" } else { "file" },
    });
    say!("{}", serde_json::to_string_pretty(&object)?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_bar_is_empty_at_first_and_full_at_the_end() {
        let drawn = |done, of| bar(AuditProgress { done, of }, Duration::from_secs(2));
        assert_eq!(drawn(0, 100), format!("[{}] 0 of 100 rows, 100 s to go", " ".repeat(30)));
        assert_eq!(drawn(50, 100), format!("[{}{}] 50 of 100 rows, 2 s to go", "#".repeat(15), " ".repeat(15)));
        assert_eq!(drawn(100, 100), format!("[{}] 100 of 100 rows, 0 s to go", "#".repeat(30)));
        assert_eq!(drawn(0, 0), format!("[{}] 0 of 0 rows, 0 s to go", "#".repeat(30)));
    }
}
