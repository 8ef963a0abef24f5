//! The proof `ssrf`: no forged or hostile target makes the connector contact a forbidden address (L1).
//!
//! Every row of a corpus goes through the connector itself and must end with the row's code. A dialer records the
//! address of every connection; bad addresses are listed separately, so that the judgement does not depend on the
//! guard under test. Then names are rebound a thousand times, between check and attempt and between attempts over a
//! kept connection. The control is a connector that allows every network: the dialer must record bad addresses.
//!
//! Rows with environment variables run in a child process that has them. Two rows can be checked only in part on one
//! machine: an address family whose answer comes late (the resolver's contract is to answer for both at once), and the
//! hosts file (the resolver returns what such a file would).

mod corpus;
mod network;
mod rebinding;

use std::fs;
use std::io;
use std::path::Path;
use std::process::Command;
use std::time::Duration;

use posthaste_engine::connector::{ConnectionFault, Connector, Done, Settings};
use posthaste_engine::target::Target;

use crate::fixtures::{Authority, block_on};
use crate::prove::{CannotRun, Context, Figure, Findings, Options};
use corpus::{CorpusRow, SsrfCase};
use network::{FixedNames, Site, Witness};

/// The default corpus; the command line can name another of the same format.
const CORPUS: &str = include_str!("../../fixtures/ssrf-corpus.tsv");
/// How many names are rebound.
const REBINDINGS: u64 = 1_000;
/// The variable that marks a child process, which runs a row with its environment.
const CHILD: &str = "POSTHASTE_SSRF_CHILD";
/// The timeout of a look-up.
const DNS_TIMEOUT: Duration = Duration::from_millis(100);

pub fn run(options: &Options) -> Findings {
    let text = match &options.corpus {
        Some(file) => fs::read_to_string(file).context(format!("cannot read the corpus {}", file.display()))?,
        None => CORPUS.to_owned(),
    };
    let rows = corpus::parse(&text).map_err(CannotRun)?;
    if std::env::var_os(CHILD).is_some() {
        return block_on(in_a_child(&rows));
    }
    let seed = options.first.unwrap_or(1);
    let mut figures = block_on(prove(&rows, seed))?;
    figures.extend(environments(&text, &rows)?);
    Ok(figures)
}

async fn prove(rows: &[CorpusRow], seed: u64) -> Findings {
    let authority = Authority::new()?;
    let mut tally = Tally::default();
    for row in rows.iter().filter(|row| !row.has_environment()) {
        tally.judge(row, &ended(row, &authority).await?);
    }
    eprintln!("{} rows ended with their code", tally.right);
    let guarded = rebinding::run(REBINDINGS, seed, rebinding::Guard::On).await?;
    eprintln!("{guarded:?}");
    let control = rebinding::run(REBINDINGS / 10, seed, rebinding::Guard::Off).await?;
    eprintln!("control: {control:?}");
    let count = |number: usize| number as f64;
    Ok(vec![
        Figure::at_least("rows", count(tally.rows()), "rows", 1.0),
        Figure::at_least("right_codes", 100.0 * count(tally.right) / count(tally.rows()), "%", 100.0),
        Figure::at_most("refused_contacted", count(tally.contacted), "sockets", 0.0),
        Figure::at_least("rebindings", count(guarded.rebindings), "rebindings", REBINDINGS as f64),
        Figure::at_most("rebindings_contacted", count(guarded.bad_contacts), "sockets", 0.0),
        Figure::at_most("rebindings_wrong", count(guarded.wrong), "attempts", 0.0),
        Figure::at_least("control_caught", count(control.bad_contacts), "sockets", 1.0),
    ])
}

/// The result of a row.
struct End {
    code: String,
    /// Sockets that it must not open but did.
    contacted: usize,
}

#[derive(Debug, Default)]
struct Tally {
    right: usize,
    wrong: usize,
    contacted: usize,
}

impl Tally {
    fn judge(&mut self, row: &CorpusRow, end: &End) {
        if end.code == row.code {
            self.right += 1;
        } else {
            eprintln!("{} {:?} ended {}, not {}", row.id, row.input, end.code, row.code);
            self.wrong += 1;
        }
        if end.contacted > 0 {
            eprintln!("{} {:?} opened {} forbidden sockets", row.id, row.input, end.contacted);
        }
        self.contacted += end.contacted;
    }

    fn rows(&self) -> usize {
        self.right + self.wrong
    }
}

async fn ended(row: &CorpusRow, authority: &Authority) -> io::Result<End> {
    let case = SsrfCase::of(row).map_err(io::Error::other)?;
    let target = match Target::parse(&case.url, &case.rules) {
        Err(refusal) => return Ok(End { code: refusal.code().to_owned(), contacted: 0 }),
        Ok(target) => target,
    };
    let host = target.origin().host.to_string();
    let acceptor = match case.url.to_ascii_lowercase().starts_with("https:") {
        true => Some(authority.acceptor(host.trim_matches(['[', ']']))?),
        false => None,
    };
    // Closing connections makes each attempt look the name up again.
    let answer = format!("{}\r\nconnection: close", case.answer);
    let receiver = Site::start(&answer, acceptor).await?;
    let (names, witness) = (FixedNames::new(case.lookups.clone()), Witness::new(receiver.address));
    let settings = Settings { rules: case.rules.clone(), dns_timeout: DNS_TIMEOUT, ..Settings::default() };
    let (connector, mut results) =
        Connector::with_dial(settings, names, std::sync::Arc::clone(&witness) as _, authority.roots()?);
    if case.created
        && let Err(refusal) = connector.check(&target).await
    {
        return Ok(End { code: refusal.code().to_owned(), contacted: 0 });
    }
    let target = std::sync::Arc::new(target);
    let (mut last, mut contacted) = (String::new(), 0);
    for attempt in 0..case.attempts {
        let before = witness.dialled().len();
        network::send(&connector, &target)?;
        let done = results.recv().await.ok_or_else(|| io::Error::other("the connector ended"))?;
        last = code(&done).to_owned();
        let dialled = witness.dialled();
        contacted += match done.result {
            // The attempt was answered: only addresses of its own look-up may have been contacted.
            Ok(_) => dialled[before..].iter().filter(|to| !case.may_contact(&target, to.ip(), attempt)).count(),
            Err(_) => dialled.len() - before,
        };
    }
    Ok(End { code: last, contacted })
}

/// The code that an operator would see: that of the refusal, otherwise that of the cause.
fn code(done: &Done) -> &'static str {
    match &done.result {
        Ok(answer) => posthaste_core::classify::status(answer.status.as_u16()).code(),
        Err(ConnectionFault { cause: posthaste_core::Cause::AddressRefused, detail: Some(refusal) }) => refusal,
        Err(fault) => fault.cause.code(),
    }
}

/// Runs rows in a child process, which has their environment.
async fn in_a_child(rows: &[CorpusRow]) -> Findings {
    let authority = Authority::new()?;
    let mut tally = Tally::default();
    for row in rows {
        tally.judge(row, &ended(row, &authority).await?);
    }
    Ok(vec![Figure::at_most("wrong", (tally.wrong + tally.contacted) as f64, "rows", 0.0)])
}

/// Runs each row that has an environment in a child process.
fn environments(text: &str, rows: &[CorpusRow]) -> io::Result<Vec<Figure>> {
    let header = text.lines().next().unwrap_or_default();
    let (mut run, mut right) = (0, 0);
    for row in rows.iter().filter(|row| row.has_environment()) {
        let folder = tempfile::tempdir()?;
        let corpus = folder.path().join("row.tsv");
        let line = text.lines().find(|line| line.split('\t').next() == Some(&row.id)).unwrap_or_default();
        fs::write(&corpus, format!("{header}\n{line}\n"))?;
        let holds = runs_clean(row, &corpus, folder.path())?;
        run += 1;
        right += usize::from(holds);
    }
    Ok(vec![Figure::at_most("environment_heeded", (run - right) as f64, "rows", 0.0)])
}

fn runs_clean(row: &CorpusRow, corpus: &Path, folder: &Path) -> io::Result<bool> {
    let mut child = Command::new(std::env::current_exe()?);
    child.args(["ssrf", "--corpus"]).arg(corpus).current_dir(folder).env(CHILD, "1").envs(row.environment());
    let ended = child.output()?;
    if !ended.status.success() {
        eprintln!("{}: {}", row.id, String::from_utf8_lossy(&ended.stderr));
    }
    // The environment may ask for files to be written (such as `SSLKEYLOGFILE`): only the corpus may be there.
    let files = fs::read_dir(folder)?.count();
    if files > 1 {
        eprintln!("{}: a file was written", row.id);
    }
    Ok(ended.status.success() && files == 1)
}
