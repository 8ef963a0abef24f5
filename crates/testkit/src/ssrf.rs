//! The proof `ssrf`: nothing forged or hostile makes the connector contact what it must not (L1).
//!
//! Every row of a corpus goes through the connector itself and must end with the row's code. A witness
//! opens the sockets and writes down to which address; a table of its own says which addresses are bad,
//! so that the guard is not its own judge. Then names change their minds a thousand times between check
//! and attempt, and between attempts over a kept connection. The control is a connector whose guard lets
//! everything pass: the witness must see what it does.
//!
//! Rows of an environment run in a child process that has it. Two rows say more than can be shown on one
//! machine, and are shown as far as they go: a second family that answers late (the resolver's contract is
//! to answer for both at once), and the hosts file (a resolver gives what such a file would).

mod corpus;
mod network;
mod rebinding;

use std::fs;
use std::io;
use std::path::Path;
use std::process::Command;
use std::time::Duration;

use posthaste_engine::connector::{Connector, Done, Fault, Settings};
use posthaste_engine::target::Target;

use crate::authority::Authority;
use crate::prove::{CannotRun, Figure, Findings, Options};
use corpus::{Case, Row};
use network::{Names, Receiver, Witness};

/// Kept in the project; another of its form is named on the command line.
const CORPUS: &str = include_str!("../fixtures/ssrf-corpus.tsv");
/// How often names change their minds.
const REBINDINGS: u64 = 1_000;
/// Set for a child process that runs rows under their own environment.
const CHILD: &str = "POSTHASTE_SSRF_CHILD";
/// A look-up that never ends is waited for so long.
const DNS_TIMEOUT: Duration = Duration::from_millis(100);

/// Runs the proof.
pub fn run(options: &Options) -> Findings {
    let text = match &options.corpus {
        Some(file) => fs::read_to_string(file)
            .map_err(|error| CannotRun(format!("cannot read the corpus {}: {error}", file.display())))?,
        None => CORPUS.to_owned(),
    };
    let rows = corpus::parse(&text).map_err(CannotRun)?;
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    if std::env::var_os(CHILD).is_some() {
        return runtime.block_on(in_a_child(&rows));
    }
    let seed = options.first.unwrap_or(1);
    let mut figures = runtime.block_on(prove(&rows, seed))?;
    figures.extend(environments(&text, &rows)?);
    Ok(figures)
}

async fn prove(rows: &[Row], seed: u64) -> Findings {
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

/// How a row ended.
struct End {
    code: String,
    /// Sockets it should not have opened.
    contacted: usize,
}

#[derive(Debug, Default)]
struct Tally {
    right: usize,
    wrong: usize,
    contacted: usize,
}

impl Tally {
    fn judge(&mut self, row: &Row, end: &End) {
        if end.code == row.code {
            self.right += 1;
        } else {
            eprintln!("{} {:?} ended {}, not {}", row.id, row.input, end.code, row.code);
            self.wrong += 1;
        }
        if end.contacted > 0 {
            eprintln!("{} {:?} opened {} sockets it should not have", row.id, row.input, end.contacted);
        }
        self.contacted += end.contacted;
    }

    fn rows(&self) -> usize {
        self.right + self.wrong
    }
}

/// Runs a row.
async fn ended(row: &Row, authority: &Authority) -> io::Result<End> {
    let case = Case::of(row).map_err(io::Error::other)?;
    let target = match Target::parse(&case.url, &case.rules) {
        Err(refusal) => return Ok(End { code: refusal.code().to_owned(), contacted: 0 }),
        Ok(target) => target,
    };
    let host = target.origin().host.to_string();
    let acceptor = match case.url.to_ascii_lowercase().starts_with("https:") {
        true => Some(authority.acceptor(host.trim_matches(['[', ']']))?),
        false => None,
    };
    // Each attempt looks the name up anew.
    let answer = format!("{}\r\nconnection: close", case.answer);
    let receiver = Receiver::start(&answer, acceptor).await?;
    let (names, witness) = (Names::new(case.lookups.clone()), Witness::new(receiver.address));
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
            // An answer came from somewhere, and only an answer of the look-up's may have given it.
            Ok(_) => dialled[before..].iter().filter(|to| !case.may_contact(&target, to.ip(), attempt)).count(),
            Err(_) => dialled.len() - before,
        };
    }
    Ok(End { code: last, contacted })
}

/// The code an operator would see: the refusal's, else the cause's.
fn code(done: &Done) -> &'static str {
    match &done.result {
        Ok(answer) => posthaste_core::classify::status(answer.status.as_u16()).code(),
        Err(Fault { cause: posthaste_core::Cause::AddressRefused, detail: Some(refusal) }) => refusal,
        Err(fault) => fault.cause.code(),
    }
}

/// In a child: the environment is the row's.
async fn in_a_child(rows: &[Row]) -> Findings {
    let authority = Authority::new()?;
    let mut tally = Tally::default();
    for row in rows {
        tally.judge(row, &ended(row, &authority).await?);
    }
    Ok(vec![Figure::at_most("wrong", (tally.wrong + tally.contacted) as f64, "rows", 0.0)])
}

/// Runs the rows that have an environment, each in a child of its own.
fn environments(text: &str, rows: &[Row]) -> io::Result<Vec<Figure>> {
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

fn runs_clean(row: &Row, corpus: &Path, folder: &Path) -> io::Result<bool> {
    let mut child = Command::new(std::env::current_exe()?);
    child.args(["ssrf", "--corpus"]).arg(corpus).current_dir(folder).env(CHILD, "1").envs(row.environment());
    let ended = child.output()?;
    if !ended.status.success() {
        eprintln!("{}: {}", row.id, String::from_utf8_lossy(&ended.stderr));
    }
    // Whatever the environment asked to be written was not.
    let files = fs::read_dir(folder)?.count();
    if files > 1 {
        eprintln!("{}: a file was written", row.id);
    }
    Ok(ended.status.success() && files == 1)
}
