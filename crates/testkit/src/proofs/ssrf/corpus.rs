//! The corpus: one hostile target per row, with the addresses that it resolves to and the code with which it must be
//! refused.

use std::net::IpAddr;

use posthaste_engine::connector::NoAnswer;
use posthaste_engine::target::{Target, TargetRules};

use super::network::Lookup;

#[derive(Clone, Debug)]
pub(super) struct CorpusRow {
    pub(super) id: String,
    kind: String,
    pub(super) input: String,
    resolves_to: String,
    pub(super) code: String,
}

/// Reads rows: a line of names, then tabs between id, kind, input, answers, verdict, code and a note.
pub(super) fn parse(text: &str) -> Result<Vec<CorpusRow>, String> {
    let unescape = |text: &str| text.replace("\\t", "\t").replace("\\n", "\n").replace("\\r", "\r");
    let rows = text.lines().skip(1).filter(|line| !line.is_empty()).map(|line| {
        let fields: Vec<&str> = line.split('\t').collect();
        let [id, kind, input, resolves_to, _, code, ..] = fields[..] else {
            return Err(format!("a row of the corpus has six fields or more, not {}: {line}", fields.len()));
        };
        let own = |text: &str| text.to_owned();
        Ok(CorpusRow {
            id: own(id),
            kind: own(kind),
            input: unescape(input),
            resolves_to: own(resolves_to),
            code: own(code),
        })
    });
    let rows = rows.collect::<Result<Vec<_>, String>>()?;
    if rows.is_empty() { Err("the corpus has no rows".to_owned()) } else { Ok(rows) }
}

impl CorpusRow {
    /// Whether it needs a child process with environment variables of its own.
    pub(super) fn has_environment(&self) -> bool {
        self.kind == "env" && self.environment().next().is_some()
    }

    /// The environment variables in front of its URL.
    pub(super) fn environment(&self) -> impl Iterator<Item = (&str, &str)> {
        let words = self.input.split(' ').take_while(|word| !word.contains("://") || word.contains('='));
        words.filter_map(|word| word.split_once('=')).filter(|(name, _)| !name.contains(['/', ':']))
    }
}

/// A row, parsed for the attempts.
pub(super) struct SsrfCase {
    pub(super) rules: TargetRules,
    pub(super) url: String,
    /// The receiver's answer, if it gets a request: the rest of a status line, and headers.
    pub(super) answer: String,
    pub(super) lookups: Vec<Lookup>,
    /// Whether the first look-up is made when the endpoint is created, before any attempt.
    pub(super) created: bool,
    pub(super) attempts: usize,
}

impl SsrfCase {
    pub(super) fn of(row: &CorpusRow) -> Result<Self, String> {
        let lookups: Result<Vec<_>, String> = row.resolves_to.split(" ; ").filter_map(lookup).collect();
        let mut case = Self {
            rules: TargetRules { allow_http: true, ..TargetRules::default() },
            url: row.input.clone(),
            answer: "200 OK".to_owned(),
            lookups: lookups.map_err(|word| format!("{}: cannot read the answer {word:?}", row.id))?,
            created: row.resolves_to.starts_with("create:"),
            attempts: row.resolves_to.split(" ; ").filter(|text| text.starts_with("attempt")).count().max(1),
        };
        match row.kind.as_str() {
            "config" => case.configure(&row.input).ok_or_else(|| format!("{}: an unknown setting", row.id))?,
            "redirect" => {
                let (url, answer) = row.input.split_once(" -> ").ok_or("a redirect has an arrow")?;
                case.url = url.to_owned();
                case.answer = match answer.split_once(' ').ok_or("a redirect has a status and more")? {
                    ("200", field) => format!("200 OK\r\n{field}"),
                    (status, location) => format!("{status} Moved\r\nlocation: {location}"),
                };
            }
            "env" if row.has_environment() => case.url = row.input.rsplit(' ').next().unwrap_or_default().to_owned(),
            // A line of a hosts file: the look-up returns its address.
            "env" => case.url = format!("https://{}/a", row.input.split(' ').nth(2).unwrap_or_default()),
            _ => {}
        }
        Ok(case)
    }

    fn configure(&mut self, input: &str) -> Option<()> {
        let (setting, url) = input.split_once(' ')?;
        let (name, value) = setting.split_once('=')?;
        let rules = &mut self.rules;
        match name {
            "https_only" => rules.allow_http = value != "true",
            "allow_http" => rules.allow_http = value == "true",
            "allow_networks" => {
                rules.allow_networks = value.split(',').map(str::parse).collect::<Result<_, _>>().ok()?;
            }
            "deny_ports" => rules.deny_ports = value.split(',').map(str::parse).collect::<Result<_, _>>().ok()?,
            "allow_ip_literals" => rules.allow_ip_literals = value == "true",
            "deny_hosts" => rules.deny_hosts = vec![value.parse().ok()?],
            "own_listen" => {
                rules.own_listen = vec![value.parse().ok()?];
                rules.own_addresses = || vec![IpAddr::from([10, 20, 1, 1])];
                rules.allow_networks = vec!["10.20.0.0/16".parse().ok()?];
            }
            _ => return None,
        }
        self.url = url.to_owned();
        Some(())
    }

    /// Whether an attempt may contact this address: it is in the URL or in the answer of the attempt's look-up.
    pub(super) fn may_contact(&self, target: &Target, address: IpAddr, attempt: usize) -> bool {
        if target.origin().host == posthaste_engine::target::Host::Address(address) {
            return true;
        }
        let lookup = self.lookups.get(attempt + usize::from(self.created)).or(self.lookups.last());
        matches!(lookup, Some(Lookup::Addresses(list)) if list.contains(&address))
    }
}

/// The result of a look-up; `None` where no look-up is expected.
fn lookup(text: &str) -> Option<Result<Lookup, String>> {
    let text = match text.split_once(": ") {
        Some((word, rest)) if word == "create" || word.starts_with("attempt") => rest,
        // The answers for both address families are one result, whichever comes first.
        Some(("happy eyeballs", rest)) => return Some(both_families(rest)),
        _ => text,
    };
    let addresses = |list: &str| {
        let parsed = list.split(',').map(str::parse).collect::<Result<Vec<IpAddr>, _>>();
        parsed.map(Lookup::Addresses).map_err(|_| list.to_owned())
    };
    Some(match text {
        "" => return None,
        "NODATA" | "NXDOMAIN" => Ok(Lookup::Fails(NoAnswer::NotFound)),
        "SERVFAIL" => Ok(Lookup::Fails(NoAnswer::Failed)),
        "TIMEOUT" => Ok(Lookup::NeverEnds),
        alias if alias.starts_with("CNAME ") => addresses(alias.rsplit(" -> ").next().unwrap_or_default()),
        list => match list.split_once(" x ") {
            Some((address, count)) => repeated(address, count),
            None => addresses(list),
        },
    })
}

fn both_families(text: &str) -> Result<Lookup, String> {
    let addresses: Vec<IpAddr> = text.split([' ', ',']).filter_map(|word| word.parse().ok()).collect();
    if addresses.is_empty() { Err(text.to_owned()) } else { Ok(Lookup::Addresses(addresses)) }
}

fn repeated(address: &str, count: &str) -> Result<Lookup, String> {
    let times = count.split(' ').next().and_then(|number| number.parse::<usize>().ok()).filter(|times| *times < 10_000);
    match (address.parse::<IpAddr>(), times) {
        (Ok(address), Some(times)) => Ok(Lookup::Addresses(vec![address; times])),
        _ => Err(format!("{address} x {count}")),
    }
}
