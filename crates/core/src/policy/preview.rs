//! A policy in readable form: a table of waits, the longest outage it certainly survives, and a
//! sentence for customers (C5, C6).
//!
//! The ranges are the ones the engine draws from. Attempts are assumed to take no time: a slow receiver only
//! makes the schedule longer. `Retry-After` and the doubled wait after a 429 without one are not included.

use std::time::Duration;

use crate::Tier;
use crate::delivery::NOW_OR_NEVER;
use crate::time::human;

use super::Policy;
use super::jitter::Jitter;
use super::spec::WAIT_MAX;
use super::strategy::Strategy;

/// The schedule of a policy for one tier and TTL if every attempt fails.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Preview {
    /// The wait before each retry that can start in time.
    pub waits: Vec<Wait>,
    /// The longest possible wait, jitter included.
    pub largest_wait: Duration,
    /// An outage that begins at accept and is shorter than this is survived for every roll of the jitter: at
    /// least one attempt starts after it.
    pub survives: Duration,
    /// Warnings about the schedule.
    pub notes: Vec<String>,
    /// The schedule as a sentence for customers.
    pub text: String,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Wait {
    /// The number of the retry; the first is 1.
    pub retry: u16,
    /// The wait before jitter; for decorrelated, which has none, the wait that middle rolls draw.
    pub after: Duration,
    /// The shortest wait, jitter included.
    pub earliest: Duration,
    /// The longest wait, jitter included.
    pub latest: Duration,
    /// The sum of `after` up to this retry.
    pub since_accept: Duration,
}

impl Policy {
    /// The schedule for a message of that tier and TTL if every attempt fails.
    pub fn preview(&self, tier: Tier, ttl: Option<Duration>) -> Preview {
        if ttl.is_some_and(|ttl| ttl.is_zero()) {
            return now_or_never();
        }
        let outlook = Outlook::new(self, tier, ttl);
        let waits = outlook.waits.clone();
        Preview {
            largest_wait: waits.iter().map(|wait| wait.latest).max().unwrap_or_default(),
            survives: outlook.survives(),
            notes: outlook.notes(),
            text: outlook.text(),
            waits,
        }
    }

    /// The latest start of the last retry, counted from birth.
    pub(super) fn latest_start(&self, tier: Tier) -> Duration {
        let latest: Duration = self.waits(tier).map(|wait| wait.latest).sum();
        latest.min(self.window.unwrap_or(Duration::MAX))
    }

    /// The waits of all retries, without regard to window and TTL.
    fn waits(&self, tier: Tier) -> impl Iterator<Item = Wait> {
        // Decorrelated waits grow from the previous one: the shortest from the shortest, the longest from the longest.
        let mut before: Option<Wait> = None;
        let mut since_accept = Duration::ZERO;
        (1..self.max_attempts).map(move |retry| {
            let earliest = self.band(retry, tier, before.map(|wait| wait.earliest)).earliest();
            let latest = self.band(retry, tier, before.map(|wait| wait.latest)).latest();
            let after = match self.jitter {
                Jitter::Decorrelated if retry > 1 || self.variant(tier).first.is_none() => {
                    self.band(retry, tier, before.map(|wait| wait.after)).middle()
                }
                _ => self.aim(retry, tier),
            };
            since_accept += after;
            let wait = Wait { retry, after, earliest, latest, since_accept };
            before = Some(wait);
            wait
        })
    }
}

impl Preview {
    /// The waits as a plain-text table, the totals, and the notes.
    pub fn table(&self) -> String {
        let mut rows = vec![["retry", "wait", "earliest", "latest", "since accept"].map(str::to_owned)];
        rows.extend(self.waits.iter().map(|wait| {
            let [after, earliest, latest, since] =
                [wait.after, wait.earliest, wait.latest, wait.since_accept].map(human);
            [wait.retry.to_string(), after, earliest, latest, since]
        }));
        let widths: Vec<usize> =
            (0..5).map(|column| rows.iter().map(|row| row[column].chars().count()).max().unwrap_or(0)).collect();
        let mut table = String::new();
        for row in rows {
            let cells: Vec<String> = row.iter().zip(&widths).map(|(cell, width)| format!("{cell:>width$}")).collect();
            table += &cells.join("  ");
            table.push('\n');
        }
        table += &format!("largest wait: {}\n", human(self.largest_wait));
        table += &format!("survives for certain: {}\n", human(self.survives));
        for note in &self.notes {
            table += &format!("note: {note}\n");
        }
        table
    }
}

/// What ends the attempts of a delivery that never arrives.
#[derive(Clone, Copy)]
enum End {
    Attempts,
    Window(Duration),
    Ttl(Duration),
}

/// A policy for one tier and TTL.
struct Outlook<'a> {
    policy: &'a Policy,
    tier: Tier,
    end: End,
    /// No retry starts later than this after birth.
    last_start: Duration,
    /// The retries that can start by then.
    waits: Vec<Wait>,
    /// How many of them start by then for every roll.
    certain: usize,
}

impl<'a> Outlook<'a> {
    fn new(policy: &'a Policy, tier: Tier, ttl: Option<Duration>) -> Self {
        // At its TTL a delivery has expired; at the end of its window an attempt may still start.
        let by_ttl = ttl.map_or(Duration::MAX, |ttl| ttl.saturating_sub(Duration::from_millis(1)));
        let by_window = policy.window.unwrap_or(Duration::MAX);
        let last_start = by_ttl.min(by_window);
        let (mut earliest, mut latest) = (Duration::ZERO, Duration::ZERO);
        let mut certain = 0;
        let waits: Vec<Wait> = policy
            .waits(tier)
            .take_while(|wait| {
                earliest += wait.earliest;
                latest += wait.latest;
                certain += usize::from(latest <= last_start);
                earliest <= last_start
            })
            .collect();
        let end = match (ttl, policy.window) {
            _ if certain + 1 == usize::from(policy.max_attempts) => End::Attempts,
            (Some(ttl), _) if by_ttl < by_window => End::Ttl(ttl),
            (_, Some(window)) => End::Window(window),
            _ => End::Attempts,
        };
        Self { policy, tier, end, last_start, waits, certain }
    }

    /// The earliest time at which the last attempt can start, over all rolls.
    ///
    /// Either the last attempt is the last retry, which starts as early as possible; or the retry after it would be
    /// too late, and then it starts at most that retry's longest wait before the end.
    fn survives(&self) -> Duration {
        let mut worst: Duration = self.waits.iter().map(|wait| wait.earliest).sum();
        let (mut earliest, mut latest) = (Duration::ZERO, Duration::ZERO);
        for next in self.policy.waits(self.tier).take(self.waits.len() + 1) {
            latest += next.latest;
            if latest > self.last_start {
                worst = worst.min(self.last_start.saturating_sub(next.latest).max(earliest));
            }
            earliest += next.earliest;
        }
        worst
    }

    fn notes(&self) -> Vec<String> {
        let mut notes = Vec::new();
        let written = self.policy.waits(self.tier).last().map(|wait| human(wait.since_accept)).unwrap_or_default();
        match self.end {
            End::Attempts => {}
            End::Ttl(ttl) => notes.push(format!(
                "the policy outlasts the TTL of {}: its last retry would come {written} after accept; what is not delivered by the TTL expires",
                human(ttl)
            )),
            End::Window(window) => notes.push(format!(
                "the window of {} ends before the attempts do: the last retry would come {written} after accept",
                human(window)
            )),
        }
        notes.extend(self.jitter_note());
        notes.extend(self.list_note());
        let variant = self.policy.variant(self.tier);
        if let (Some(first), false) = (variant.first, self.waits.is_empty()) {
            let first = human(self.waits[0].after.min(first));
            notes.push(format!("{}: the first retry comes within {first}; jitter only shortens it", self.tier.name()));
        }
        let unused = self.policy.unused.iter();
        notes.extend(unused.map(|field| {
            let (strategy, jitter) = (self.policy.strategy.name(), self.policy.jitter.name());
            let of =
                if field.starts_with("jitter") { format!("jitter {jitter}") } else { format!("strategy {strategy}") };
            format!("{field} is set but has no effect with {of}")
        }));
        notes
    }

    fn jitter_note(&self) -> Option<String> {
        let cap = human(self.policy.cap);
        let after_first = || self.waits.iter().skip(1);
        match self.policy.jitter {
            _ if self.waits.is_empty() => None,
            Jitter::Decorrelated if after_first().all(|wait| wait.earliest == wait.latest) && self.waits.len() > 1 => {
                Some(format!(
                    "decorrelated jitter is cut at the cap of {cap}, which leaves no jitter here: raise the cap above the first wait"
                ))
            }
            Jitter::Decorrelated => Some(format!(
                "decorrelated jitter is cut at the cap of {cap}: many late retries wait exactly that long"
            )),
            _ if self.waits.iter().any(|wait| wait.earliest == wait.latest) => {
                Some("no jitter: deliveries that fail together are retried together".to_owned())
            }
            _ => None,
        }
    }

    fn list_note(&self) -> Option<String> {
        let Strategy::List { delays } = &self.policy.strategy else { return None };
        let retries = usize::from(self.policy.max_attempts) - 1;
        if self.policy.jitter == Jitter::Decorrelated {
            return Some("decorrelated jitter uses only the first of the delays and grows from it".to_owned());
        }
        if retries > delays.len() {
            return Some(format!("the last of the {} delays repeats up to {retries} retries", delays.len()));
        }
        (retries < delays.len())
            .then(|| format!("only {retries} of the {} delays used: max_attempts allows no more", delays.len()))
    }

    fn text(&self) -> String {
        let spends_all = self.waits.len() + 1 == usize::from(self.policy.max_attempts);
        let then = match self.end {
            End::Ttl(_) if spends_all => "becomes a dead letter or expires",
            End::Ttl(_) => "expires",
            End::Attempts | End::Window(_) => "becomes a dead letter",
        };
        if self.waits.is_empty() {
            let why = match self.end {
                End::Attempts => "there is no retry".to_owned(),
                End::Ttl(ttl) => format!("no retry fits into its TTL of {}", human(ttl)),
                End::Window(window) => format!("no retry fits into the window of {}", human(window)),
            };
            return format!("Tries once; {why}. Survives no outage; a message that fails {then}.");
        }
        let tries = match (self.certain + 1, self.waits.len() + 1) {
            (least, most) if least == most => format!("{most} times"),
            (least, most) => format!("{least} to {most} times"),
        };
        let within = match self.end {
            End::Attempts => String::new(),
            End::Ttl(ttl) => format!(", within its TTL of {}", human(ttl)),
            End::Window(window) => format!(", within a window of {}", human(window)),
        };
        let span = self.typical_span();
        let survives = match self.survives() {
            Duration::ZERO => {
                "Survives no outage for certain, since jitter may make every wait next to nothing".to_owned()
            }
            certain => format!("Survives an outage of up to {}", human(certain)),
        };
        format!(
            "Tries {tries} over about {}{within}: at once, then {}{}. {survives}; a message still not delivered then {then}.",
            human(span),
            self.waits_in_words(),
            self.jitter_in_words(),
        )
    }

    /// When the last retry starts with middle rolls.
    fn typical_span(&self) -> Duration {
        let middle = |wait: &Wait| match self.policy.jitter {
            Jitter::Decorrelated => wait.after,
            _ => (wait.earliest + wait.latest) / 2,
        };
        self.waits.iter().map(middle).sum::<Duration>().min(self.last_start)
    }

    /// `within 1s, then after 15s, 1m and 3 × 5m`.
    fn waits_in_words(&self) -> String {
        let bounded = usize::from(self.policy.variant(self.tier).first.is_some());
        let mut runs: Vec<(usize, String)> = Vec::new();
        for wait in &self.waits[bounded..] {
            let words = human(wait.after);
            match runs.last_mut() {
                Some((count, last)) if *last == words => *count += 1,
                _ => runs.push((1, words)),
            }
        }
        let mut words: Vec<String> = Vec::new();
        for (count, wait) in runs {
            match count {
                1 | 2 => words.extend(std::iter::repeat_n(wait, count)),
                _ => words.push(format!("{count} × {wait}")),
            }
        }
        if words.len() > WORDS_MAX {
            words.splice(WORDS_MAX / 2..words.len() - 1, ["…".to_owned()]);
        }
        let first = self.waits.first().filter(|_| bounded == 1).map(|wait| format!("within {}", human(wait.after)));
        match (first, joined(&words)) {
            (Some(first), rest) if rest.is_empty() => first,
            (Some(first), rest) => format!("{first}, then after {rest}"),
            (None, rest) => format!("after {rest}"),
        }
    }

    fn jitter_in_words(&self) -> String {
        match self.policy.jitter {
            Jitter::None => String::new(),
            Jitter::Full => ", each cut at random to anything below".to_owned(),
            Jitter::Equal => ", each cut at random by up to half".to_owned(),
            Jitter::Decorrelated => {
                let cap = self.policy.cap;
                let bound = if cap == WAIT_MAX { String::new() } else { format!(" and never above {}", human(cap)) };
                format!(", each drawn at random, up to three times the one before{bound}")
            }
            Jitter::Spread(share) => format!(", each give or take {share}"),
            Jitter::Add(share) => format!(", each plus up to {share}"),
        }
    }
}

/// How many waits the sentence lists at most; the table lists all.
const WORDS_MAX: usize = 12;

/// `a, b and c`.
fn joined(words: &[String]) -> String {
    match words {
        [] => String::new(),
        [one] => one.clone(),
        [head @ .., last] => format!("{} and {last}", head.join(", ")),
    }
}

fn now_or_never() -> Preview {
    let within = human(NOW_OR_NEVER);
    Preview {
        waits: Vec::new(),
        largest_wait: Duration::ZERO,
        survives: Duration::ZERO,
        notes: vec!["a TTL of 0 means now or never: the policy does not apply".to_owned()],
        text: format!(
            "Tries once, within {within} of accept, or never. Survives no outage; a message that fails expires."
        ),
    }
}

#[cfg(test)]
mod tests;
