//! Every row of the corpus of forged and hostile targets, through the connector itself.
//!
//! A witness opens the sockets: a refused row must not open one, an allowed row must open it to
//! the address it resolved to. Two rows say more than a test on one machine can show, and are
//! shown as far as they go: S192 (a second family that answers late) through the resolver's
//! contract to answer for both families at once, S204 (the hosts file) through a resolver that
//! gives what such a file would. No row is skipped.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::process::Command;
use std::sync::Arc;

use posthaste_engine::connector::{Connector, NoAnswer, Roots, Settings};
use posthaste_engine::target::{Target, TargetRules};

use crate::network::{Bench, Lookup, Names, Patience, SHORT, Witness, addresses, code};
use crate::receiver::{Receiver, Step, write};
use crate::tls::Authority;

const CORPUS: &str = include_str!("../fixtures/ssrf-corpus.tsv");

/// The hosts of the allowed rows over https.
const CERTIFIED: &[&str] = &[
    "example.com",
    "hooks.example.com",
    "r.example.com",
    "xn--bcher-kva.example.com",
    "1.1.1.1",
    "2001:4860:4860::8888",
];

#[derive(Clone, Debug)]
struct Row {
    id: String,
    kind: String,
    input: String,
    resolves_to: String,
    code: String,
}

fn corpus() -> Vec<Row> {
    let unescape = |text: &str| text.replace("\\t", "\t").replace("\\n", "\n").replace("\\r", "\r");
    let rows = CORPUS.lines().skip(1).map(|line| {
        let fields: Vec<&str> = line.split('\t').collect();
        let [id, kind, input, resolves_to, _, code, ..] = fields[..] else { panic!("a row has seven fields: {line}") };
        let own = |text: &str| text.to_owned();
        Row { id: own(id), kind: own(kind), input: unescape(input), resolves_to: own(resolves_to), code: own(code) }
    });
    rows.collect()
}

/// A row as one attempt sees it.
struct Case {
    rules: TargetRules,
    url: String,
    /// What the receiver answers, should it ever be asked.
    answer: String,
    /// One group of look-ups per attempt; a look-up named `create` is made before them.
    lookups: Vec<Lookup>,
    created: bool,
    attempts: usize,
}

impl Case {
    fn of(row: &Row) -> Self {
        let rules = TargetRules { allow_http: true, ..TargetRules::default() };
        let mut case = Self {
            rules,
            url: row.input.clone(),
            answer: "200 OK".to_owned(),
            lookups: row.resolves_to.split(" ; ").filter_map(lookup).collect(),
            created: row.resolves_to.starts_with("create:"),
            attempts: if row.resolves_to.starts_with("attempt1:") { 2 } else { 1 },
        };
        match row.kind.as_str() {
            "config" => case.configure(&row.input),
            "redirect" => {
                let (url, answer) = row.input.split_once(" -> ").expect("a redirect has an arrow");
                case.url = url.to_owned();
                case.answer = match answer.split_once(' ').expect("a status and more") {
                    ("200", header) => format!("200 OK\r\n{header}"),
                    (status, location) => format!("{status} Moved\r\nlocation: {location}"),
                };
            }
            "env" if row.id == "S204" => case.url = "https://hooks.example.com/a".to_owned(),
            "env" => case.url = row.input.rsplit(' ').next().expect("a URL at the end").to_owned(),
            _ => {}
        }
        case
    }

    fn configure(&mut self, input: &str) {
        let (setting, url) = input.split_once(' ').expect("a setting and a URL");
        let (name, value) = setting.split_once('=').expect("a name and a value");
        let rules = &mut self.rules;
        match name {
            "https_only" => rules.allow_http = value != "true",
            "allow_networks" => rules.allow_networks = vec![value.parse().expect("a network")],
            "allow_ip_literals" => rules.allow_ip_literals = value == "true",
            "deny_hosts" => rules.deny_hosts = vec![value.parse().expect("a pattern")],
            "own_listen" => rules.own_listen = vec![value.parse().expect("an address")],
            unknown => panic!("the corpus has a new setting: {unknown}"),
        }
        self.url = url.to_owned();
    }
}

/// What one look-up of the corpus gives; `None` where no look-up is expected.
fn lookup(text: &str) -> Option<Lookup> {
    let text = text.trim_start_matches("create: ").trim_start_matches("attempt: ");
    let text = text.trim_start_matches("attempt1: ").trim_start_matches("attempt2: ");
    Some(match text {
        "" => return None,
        "NODATA" => Lookup::Fails(NoAnswer::NotFound),
        "SERVFAIL" => Lookup::Fails(NoAnswer::Failed),
        "TIMEOUT" => Lookup::NeverEnds,
        "CNAME localhost -> 127.0.0.1" => addresses(&["127.0.0.1"]),
        "93.184.216.34 x 500 answers" => Lookup::Addresses(vec![IpAddr::from([93, 184, 216, 34]); 500]),
        "happy eyeballs: AAAA 2606:4700:4700::1111 first, A 127.0.0.1 250 ms later" => {
            addresses(&["2606:4700:4700::1111", "127.0.0.1"])
        }
        list => addresses(&list.split(',').collect::<Vec<_>>()),
    })
}

/// Runs a row and gives the code it ended with; checks on the way what was contacted.
async fn run(row: &Row, authority: &Authority) -> String {
    let case = Case::of(row);
    let names = Names::new(case.lookups.clone());
    let script =
        vec![Step::Read, write(format!("HTTP/1.1 {}\r\nconnection: close\r\ncontent-length: 0\r\n\r\n", case.answer))];
    let receiver = match case.url.to_ascii_lowercase().starts_with("https:") {
        true => Receiver::start_tls(vec![script], authority.acceptor(CERTIFIED)).await,
        false => Receiver::start(vec![script]).await,
    };
    let witness = Witness::new(receiver.address(), Patience::None);
    let settings = Settings { rules: case.rules.clone(), dns_timeout: SHORT, ..Settings::default() };
    let mut bench = Bench::with(settings, names.clone(), witness.clone(), authority.roots());

    let target = match Target::parse(&case.url, &case.rules) {
        Err(refusal) => return refusal.code().to_owned(),
        Ok(target) => target,
    };
    if case.created {
        bench.connector.check(&target).await.expect("the first look-up is of a good address");
    }
    let mut last = String::new();
    for _ in 0..case.attempts {
        let dialled_before = witness.dialled().len();
        let done = bench.attempt(&case.url).await;
        last = code(&done).to_owned();
        let dialled = witness.dialled();
        match done.result {
            Ok(_) => assert_eq!(dialled.len(), dialled_before + 1, "{}: one connection", row.id),
            Err(_) => assert_eq!(dialled.len(), dialled_before, "{}: a refused target was contacted", row.id),
        }
    }
    check_contacted(row, &case, &witness, &names);
    last
}

/// Only an address of the row may have been contacted, and one look-up served check and connect.
fn check_contacted(row: &Row, case: &Case, witness: &Witness, names: &Names) {
    let resolved: Vec<IpAddr> = case
        .lookups
        .iter()
        .flat_map(|lookup| match lookup {
            Lookup::Addresses(list) => list.clone(),
            _ => Vec::new(),
        })
        .collect();
    for address in witness.dialled() {
        let is_literal = case.url.contains(&address.ip().to_string());
        assert!(is_literal || resolved.contains(&address.ip()), "{}: {address} was never an answer", row.id);
    }
    let looked_up = if case.lookups.is_empty() { 0 } else { case.attempts + usize::from(case.created) };
    assert_eq!(names.asked(), looked_up, "{}: look-ups", row.id);
}

#[tokio::test]
async fn every_row_of_the_corpus_ends_with_its_code() {
    let authority = Authority::new();
    let rows = corpus();
    assert_eq!(rows.len(), 211, "the corpus is whole");
    let mut wrong = BTreeMap::new();
    for row in &rows {
        let got = run(row, &authority).await;
        if got != row.code {
            wrong.insert(&row.id, format!("{:?} ended {got}, not {}", row.input, row.code));
        }
    }
    assert!(wrong.is_empty(), "{wrong:#?}");
}

/// Set for the child process that runs one row under the row's own environment.
const ROW: &str = "POSTHASTE_SSRF_ROW";

#[tokio::test]
async fn proxies_and_key_logs_of_the_environment_are_ignored() {
    let rows: Vec<Row> = corpus().into_iter().filter(|row| row.kind == "env" && row.id != "S204").collect();
    if let Ok(id) = std::env::var(ROW) {
        let row = rows.iter().find(|row| row.id == id).expect("the parent names a row");
        assert_eq!(run(row, &Authority::new()).await, row.code);
        return;
    }
    assert_eq!(rows.len(), 4);
    let folder = tempfile::tempdir().expect("a temporary folder");
    for row in rows {
        let mut child = Command::new(std::env::current_exe().expect("this test's own binary"));
        child.args(["ssrf::proxies_and_key_logs_of_the_environment_are_ignored", "--exact"]);
        child.current_dir(&folder).env(ROW, &row.id);
        for (name, value) in row.input.split(' ').filter_map(|word| word.split_once('=')) {
            child.env(name, value);
        }
        let output = child.output().expect("the test binary starts");
        assert!(output.status.success(), "{}: {}", row.id, String::from_utf8_lossy(&output.stdout));
        assert!(String::from_utf8_lossy(&output.stdout).contains("1 passed"), "{}: the child ran no test", row.id);
    }
    assert!(!folder.path().join("keys.log").exists(), "TLS keys were logged");
}

#[tokio::test]
async fn http_is_refused_unless_the_operator_allows_it() {
    for row in corpus().iter().filter(|row| row.kind == "url" && row.input.starts_with("http://")) {
        let verdict = Target::parse(&row.input, &TargetRules::default()).expect_err("http is off by default");
        let expected = match row.code.as_str() {
            earlier @ ("url_control_char" | "url_backslash") => earlier,
            _ => "url_scheme",
        };
        assert_eq!(verdict.code(), expected, "{}", row.id);
    }
}

#[tokio::test]
async fn the_default_resolver_cannot_reach_loopback_by_name() {
    let (connector, _results) =
        Connector::new(Settings::default(), Arc::new(posthaste_engine::connector::System), Roots::none());
    let rules = TargetRules::default();
    assert!(Target::parse("https://localhost/", &rules).is_err());
    let literal = Target::parse(
        "https://127.0.0.1/",
        &TargetRules { allow_networks: vec!["127.0.0.0/8".parse().expect("a network")], ..TargetRules::default() },
    );
    // Even a target parsed under laxer rules is judged by the connector's own.
    let refusal = connector.check(&literal.expect("allowed when it was parsed")).await.expect_err("not allowed here");
    assert_eq!(refusal.code(), "ip_loopback");
}
