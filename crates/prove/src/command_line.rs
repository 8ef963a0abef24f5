//! `prove NAME`: runs one of the named proofs and prints its figures last.
//!
//! Progress goes to stderr and the figures to stdout, so that `--json` leaves one object there.
//! Exit code 0: every figure reached its bar; 1: at least one did not; 2: the proof could not be run.
//! Started by `cargo xtask prove`, which builds it optimised. All binaries with proofs share this module.

use std::env;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::process::ExitCode;

use crate::{CannotRun, Figure, FigureBar, Findings, Options, Proof};

/// The least number of pairs whose median is worth judging.
pub const PAIRS_MIN: u64 = 9;
/// The most pairs; more would take hours.
const PAIRS_MAX: u64 = 99;

const USAGE: &str = "\
usage: prove NAME [--quick] [--seeds N] [--first S] [--corpus FILE] [--json]
       prove bench --against COMMIT [--pairs N] [--at-most RATIO] [--quick] [--json]
       prove --list

  --quick        the short form that the test script runs
  --seeds N      how many seeds, for a proof that has seeds
  --first S      the first seed
  --corpus FILE  another corpus, for a proof that has one (ssrf)
  --against C    compares the CPU of a delivery with that of commit C, which
                 `cargo xtask prove` builds; `prove` itself takes the path of the
                 other `posthaste` instead
  --pairs N      how often both are measured, 9 to 99 [default: 9]
  --at-most R    the bar for new CPU by old CPU [default: 1.03]
  --json         one JSON object instead of one line per figure
  --list         every proof and what it shows";

/// Runs one of these proofs, as the command line requests.
pub fn main(proofs: &[Proof]) -> ExitCode {
    match parse(env::args().skip(1), proofs) {
        Ok(Request::Help) => {
            println!("{USAGE}");
            ExitCode::SUCCESS
        }
        Ok(Request::List) => {
            let width = proofs.iter().map(|proof| proof.name.len()).max().unwrap_or(0);
            for proof in proofs {
                println!("{:width$}  {}", proof.name, proof.shows);
            }
            ExitCode::SUCCESS
        }
        Ok(Request::Run { proof, options, form }) => {
            let findings = findings(&proof, &options);
            report(&proof, &findings, form);
            ending(&findings).into()
        }
        Err(complaint) => {
            eprintln!("prove: {complaint}\n\n{USAGE}");
            Ending::CouldNotRun.into()
        }
    }
}

/// A parsed command line.
enum Request {
    Help,
    List,
    Run { proof: Proof, options: Options, form: Form },
}

/// How the figures are printed.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Form {
    Lines,
    Json,
}

fn parse(args: impl Iterator<Item = String>, proofs: &[Proof]) -> Result<Request, String> {
    let mut args = args;
    let mut name = None;
    let mut options = Options::default();
    let mut form = Form::Lines;
    while let Some(arg) = args.next() {
        match arg.as_str() {
            "--help" | "-h" => return Ok(Request::Help),
            "--list" => return Ok(Request::List),
            "--quick" => options.quick = true,
            "--json" => form = Form::Json,
            "--seeds" => options.seeds = Some(number("--seeds", args.next())?),
            "--first" => options.first = Some(number("--first", args.next())?),
            "--corpus" => options.corpus = Some(args.next().ok_or("--corpus wants a file")?.into()),
            "--against" => options.against = Some(args.next().ok_or("--against wants a commit")?.into()),
            "--pairs" => options.pairs = Some(number("--pairs", args.next())?),
            "--at-most" => options.at_most = Some(ratio("--at-most", args.next())?),
            flag if flag.starts_with('-') => return Err(format!("there is no option {flag}")),
            _ => {
                if let Some(first) = name.replace(arg.clone()) {
                    return Err(format!("one proof at a time, not {first} and {arg}"));
                }
            }
        }
    }
    let name = name.ok_or("which proof?")?;
    let proof = proofs.iter().find(|proof| proof.name == name).ok_or_else(|| unknown(&name, proofs))?;
    if options.seeds == Some(0) {
        return Err("--seeds 0 would prove nothing".to_owned());
    }
    if options.against.is_none() && (options.pairs.is_some() || options.at_most.is_some()) {
        return Err("--pairs and --at-most are for a comparison: say --against COMMIT as well".to_owned());
    }
    if options.pairs.is_some_and(|pairs| !(PAIRS_MIN..=PAIRS_MAX).contains(&pairs)) {
        return Err(format!("--pairs wants {PAIRS_MIN} to {PAIRS_MAX}: fewer have no median worth judging"));
    }
    Ok(Request::Run { proof: *proof, options, form })
}

fn number(flag: &str, value: Option<String>) -> Result<u64, String> {
    let value = value.ok_or_else(|| format!("{flag} wants a number"))?;
    value.parse().map_err(|_| format!("{flag} wants a whole number, not {value}"))
}

fn ratio(flag: &str, value: Option<String>) -> Result<f64, String> {
    let value = value.ok_or_else(|| format!("{flag} wants a ratio"))?;
    let ratio = value.parse().ok().filter(|ratio: &f64| ratio.is_finite() && *ratio > 0.0);
    ratio.ok_or_else(|| format!("{flag} wants a ratio above 0, such as 1.03, not {value}"))
}

fn unknown(name: &str, proofs: &[Proof]) -> String {
    match proofs.iter().map(|proof| proof.name).min_by_key(|known| distance(name, known)) {
        Some(nearest) => format!("there is no proof {name}; the nearest is {nearest}, and --list shows all"),
        None => format!("there is no proof {name}, nor any other"),
    }
}

/// The edit distance of `a` and `b`: letters to add, drop or replace.
fn distance(a: &str, b: &str) -> usize {
    let mut row: Vec<usize> = (0..=b.chars().count()).collect();
    for (i, x) in a.chars().enumerate() {
        let mut diagonal = row[0];
        row[0] = i + 1;
        for (j, y) in b.chars().enumerate() {
            let replaced = diagonal + usize::from(x != y);
            diagonal = row[j + 1];
            row[j + 1] = replaced.min(diagonal + 1).min(row[j] + 1);
        }
    }
    *row.last().expect("a row has at least its first cell")
}

/// Runs the proof. A proof that panics or returns no figure counts as not run, so that it cannot pass.
fn findings(proof: &Proof, options: &Options) -> Findings {
    match catch_unwind(AssertUnwindSafe(|| (proof.run)(options))) {
        Ok(Ok(figures)) if figures.is_empty() => Err(CannotRun("the proof returned no figure".to_owned())),
        Ok(findings) => findings,
        Err(_) => Err(CannotRun("the proof panicked; the message is above".to_owned())),
    }
}

/// The result of a run, as an exit code.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Ending {
    Ok = 0,
    FellShort = 1,
    CouldNotRun = 2,
}

impl From<Ending> for ExitCode {
    fn from(ending: Ending) -> Self {
        Self::from(ending as u8)
    }
}

fn ending(findings: &Findings) -> Ending {
    match findings {
        Ok(figures) if figures.iter().all(Figure::is_ok) => Ending::Ok,
        Ok(_) => Ending::FellShort,
        Err(_) => Ending::CouldNotRun,
    }
}

fn report(proof: &Proof, findings: &Findings, form: Form) {
    if form == Form::Json {
        println!("{}", json(proof, findings));
    } else if let Ok(figures) = findings {
        figures.iter().for_each(|figure| println!("{figure}"));
    }
    if let Err(CannotRun(why)) = findings {
        eprintln!("prove: {} could not be run: {why}", proof.name);
    }
}

/// The run as one JSON object. Written by hand, because it has a single shape.
fn json(proof: &Proof, findings: &Findings) -> String {
    let body = match findings {
        Ok(figures) => format!("\"figures\":[{}]", figures.iter().map(figure_json).collect::<Vec<_>>().join(",")),
        Err(CannotRun(why)) => format!("\"cannot_run\":{}", text(why)),
    };
    format!("{{\"proof\":{},\"ok\":{},{body}}}", text(proof.name), ending(findings) == Ending::Ok)
}

fn figure_json(figure: &Figure) -> String {
    let (side, bar) = match figure.bar {
        FigureBar::AtMost(bar) => ("at_most", bar),
        FigureBar::AtLeast(bar) => ("at_least", bar),
    };
    format!(
        "{{\"name\":{},\"value\":{},\"unit\":{},\"{side}\":{},\"ok\":{}}}",
        text(&figure.name),
        value(figure.value),
        text(figure.unit),
        value(bar),
        figure.is_ok()
    )
}

/// A number, or `null` for infinity and NaN, which JSON does not have.
fn value(value: f64) -> String {
    if value.is_finite() { value.to_string() } else { "null".to_owned() }
}

fn text(raw: &str) -> String {
    let mut quoted = String::from('"');
    for c in raw.chars() {
        match c {
            '"' => quoted += "\\\"",
            '\\' => quoted += "\\\\",
            '\n' => quoted += "\\n",
            c if c.is_control() => quoted += &format!("\\u{:04x}", u32::from(c)),
            c => quoted.push(c),
        }
    }
    quoted.push('"');
    quoted
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;

    const SAMPLES: &[Proof] = &[
        Proof::new("holds", |_| Ok(vec![Figure::at_most("lost", 0.0, "messages", 0.0)])),
        Proof::new("misses", |_| Ok(vec![Figure::at_least("share", 0.5, "of 1", 0.9)])),
        Proof::new("mute", |_| Ok(Vec::new())),
        Proof::new("cannot", |_| Err(CannotRun("no \"tool\" here".to_owned()))),
    ];

    fn parsed(line: &str) -> Result<Request, String> {
        parse(line.split_whitespace().map(str::to_owned), SAMPLES)
    }

    fn run(line: &str) -> (Proof, Options, Form) {
        match parsed(line) {
            Ok(Request::Run { proof, options, form }) => (proof, options, form),
            _ => panic!("`{line}` is a complete command line"),
        }
    }

    #[test]
    fn exit_codes_differ_for_met_missed_empty_and_not_run() {
        let met = r#""figures":[{"name":"lost","value":0,"unit":"messages","at_most":0,"ok":true}]"#;
        let missed = r#""figures":[{"name":"share","value":0.5,"unit":"of 1","at_least":0.9,"ok":false}]"#;
        for (name, expected, ok, result) in [
            ("holds", Ending::Ok, true, met),
            ("misses", Ending::FellShort, false, missed),
            ("cannot", Ending::CouldNotRun, false, r#""cannot_run":"no \"tool\" here""#),
            ("mute", Ending::CouldNotRun, false, r#""cannot_run":"the proof returned no figure""#),
        ] {
            let (proof, options, _) = run(name);
            let findings = findings(&proof, &options);
            let printed = format!(r#"{{"proof":"{name}","ok":{ok},{result}}}"#);
            assert_eq!((ending(&findings), json(&proof, &findings)), (expected, printed));
        }
    }

    #[test]
    fn nan_is_null_in_json() {
        let figure = Figure::at_most("p99", f64::NAN, "ms", 5.0);
        assert!(!figure.is_ok());
        assert_eq!(figure_json(&figure), r#"{"name":"p99","value":null,"unit":"ms","at_most":5,"ok":false}"#);
    }

    #[test]
    fn options_are_accepted_before_and_after_the_name() {
        let (proof, options, form) = run("--quick holds --seeds 20 --first 7 --json");
        assert_eq!((proof.name, options.quick, options.seeds, options.first), ("holds", true, Some(20), Some(7)));
        assert_eq!(form, Form::Json);
    }

    #[test]
    fn comparison_takes_a_commit_a_number_of_pairs_and_a_bar() {
        let (_, options, _) = run("holds --against build --pairs 15 --at-most 1.1");
        assert_eq!(options.against.as_deref(), Some(Path::new("build")));
        assert_eq!((options.pairs, options.at_most), (Some(15), Some(1.1)));
    }

    #[test]
    fn wrong_command_lines_are_refused_with_the_reason() {
        let cases = [
            ("", "which proof?"),
            ("hold", "there is no proof hold; the nearest is holds, and --list shows all"),
            ("holds misses", "one proof at a time, not holds and misses"),
            ("holds --slow", "there is no option --slow"),
            ("holds --seeds", "--seeds wants a number"),
            ("holds --corpus", "--corpus wants a file"),
            ("holds --seeds ten", "--seeds wants a whole number, not ten"),
            ("holds --seeds 0", "--seeds 0 would prove nothing"),
            ("holds --against", "--against wants a commit"),
            ("holds --pairs 9", "--pairs and --at-most are for a comparison: say --against COMMIT as well"),
            ("holds --against a --pairs 8", "--pairs wants 9 to 99: fewer have no median worth judging"),
            ("holds --against a --at-most -1", "--at-most wants a ratio above 0, such as 1.03, not -1"),
            ("holds --against a --at-most x", "--at-most wants a ratio above 0, such as 1.03, not x"),
        ];
        for (line, complaint) in cases {
            assert_eq!(parsed(line).err().as_deref(), Some(complaint), "`{line}`");
        }
    }
}
