//! A policy as a person reads it: a table of waits, the outage it survives for certain, and a
//! sentence to tell a customer (C5, C6).
//!
//! The bands are the ones the engine draws from. Attempts are taken as instant: a slow receiver only
//! makes the schedule longer. `Retry-After` and the doubled wait of a bare 429 come on top.

use std::time::Duration;

use crate::delivery::NOW_OR_NEVER;
use crate::tier::Tier;
use crate::time::human;

use super::Policy;
use super::jitter::Jitter;
use super::spec::WAIT_MAX;
use super::strategy::Strategy;

/// What a policy does with one tier and TTL, if every attempt fails.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Preview {
    /// The wait before each retry that can start in time.
    pub waits: Vec<Wait>,
    /// The longest that any of them can be, jitter included.
    pub largest_wait: Duration,
    /// An outage that begins with the accept and is shorter than this is survived however the dice
    /// fall: an attempt comes after it.
    pub survives: Duration,
    /// What a person should know before relying on it.
    pub notes: Vec<String>,
    /// All of it in words for a customer.
    pub text: String,
}

/// The wait before one retry.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Wait {
    /// Which retry; the first is 1.
    pub retry: u16,
    /// What jitter is put on. Decorrelated has no such thing: what it comes to with middling dice.
    pub after: Duration,
    /// The shortest that jitter makes it.
    pub earliest: Duration,
    /// The longest that jitter makes it.
    pub latest: Duration,
    /// This and every earlier `after`.
    pub since_accept: Duration,
}

impl Policy {
    /// What this policy does with a message of that tier and TTL, if every attempt fails.
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

    /// When the last retry starts at the latest, after birth.
    pub(super) fn latest_start(&self, tier: Tier) -> Duration {
        let latest: Duration = self.waits(tier).map(|wait| wait.latest).sum();
        latest.min(self.window.unwrap_or(Duration::MAX))
    }

    /// Every wait there is, whatever window and TTL say.
    fn waits(&self, tier: Tier) -> impl Iterator<Item = Wait> {
        // Decorrelated waits grow from the one before: the shortest from the shortest, the longest
        // from the longest.
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
            let wait = Wait {
                retry,
                after,
                earliest,
                latest,
                since_accept,
            };
            before = Some(wait);
            wait
        })
    }
}

impl Preview {
    /// The waits as a plain-text table, what follows from them, and the notes.
    pub fn table(&self) -> String {
        let mut rows = vec![["retry", "wait", "earliest", "latest", "since accept"].map(str::to_owned)];
        rows.extend(self.waits.iter().map(|wait| {
            let [after, earliest, latest, since] =
                [wait.after, wait.earliest, wait.latest, wait.since_accept].map(human);
            [wait.retry.to_string(), after, earliest, latest, since]
        }));
        let widths: Vec<usize> = (0..5)
            .map(|column| rows.iter().map(|row| row[column].chars().count()).max().unwrap_or(0))
            .collect();
        let mut table = String::new();
        for row in rows {
            let cells: Vec<String> = row
                .iter()
                .zip(&widths)
                .map(|(cell, width)| format!("{cell:>width$}"))
                .collect();
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

/// What ends the tries of a delivery that never arrives.
#[derive(Clone, Copy)]
enum End {
    Attempts,
    Window(Duration),
    Ttl(Duration),
}

/// A policy seen with one tier and TTL.
struct Outlook<'a> {
    policy: &'a Policy,
    tier: Tier,
    end: End,
    /// No retry starts after this.
    last_start: Duration,
    /// The retries that can start by then.
    waits: Vec<Wait>,
    /// How many of them start whatever the dice say.
    certain: usize,
}

impl<'a> Outlook<'a> {
    fn new(policy: &'a Policy, tier: Tier, ttl: Option<Duration>) -> Self {
        // At its TTL a delivery has expired; at the end of its window it may still start.
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
        Self {
            policy,
            tier,
            end,
            last_start,
            waits,
            certain,
        }
    }

    /// When the last attempt starts if the dice fall as badly as they can.
    ///
    /// Either it is the last retry, come as early as can be; or it is one whose successor would have
    /// come too late, and then it started at most that successor's longest wait before the end.
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
        let written = self
            .policy
            .waits(self.tier)
            .last()
            .map(|wait| human(wait.since_accept))
            .unwrap_or_default();
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
            notes.push(format!(
                "{}: the first retry comes within {first}; jitter only shortens it",
                self.tier.name()
            ));
        }
        if self.tier == Tier::Engagement {
            notes.push("engagement: sent only inside the off-peak window, where one is set".to_owned());
        }
        let unused = self.policy.unused.iter();
        notes.extend(unused.map(|field| {
            let (strategy, jitter) = (self.policy.strategy.name(), self.policy.jitter.name());
            let of = if field.starts_with("jitter") { jitter } else { strategy };
            format!("{field} is set but has no part in {of}")
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
                    "decorrelated is cut at the cap of {cap} after jitter, and here nothing is left of it: raise the cap above the first wait"
                ))
            }
            Jitter::Decorrelated => Some(format!(
                "decorrelated is cut at the cap of {cap} after jitter: late retries gather at exactly that wait"
            )),
            _ if self.waits.iter().any(|wait| wait.earliest == wait.latest) => {
                Some("no jitter: what fails together comes back together".to_owned())
            }
            _ => None,
        }
    }

    fn list_note(&self) -> Option<String> {
        let Strategy::List { delays } = &self.policy.strategy else {
            return None;
        };
        let retries = usize::from(self.policy.max_attempts) - 1;
        if self.policy.jitter == Jitter::Decorrelated {
            return Some("decorrelated takes only the first of the delays and grows by itself".to_owned());
        }
        if retries > delays.len() {
            return Some(format!(
                "the last of the {} delays repeats up to {retries} retries",
                delays.len()
            ));
        }
        (retries < delays.len()).then(|| {
            format!(
                "{retries} of the {} delays used: max_attempts allows no more",
                delays.len()
            )
        })
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

    /// When the last retry starts with middling dice.
    fn typical_span(&self) -> Duration {
        let middle = |wait: &Wait| match self.policy.jitter {
            Jitter::Decorrelated => wait.after,
            _ => (wait.earliest + wait.latest) / 2,
        };
        self.waits.iter().map(middle).sum::<Duration>().min(self.last_start)
    }

    /// `within 1s, then after 15s, 1m and 3 × 5m`.
    fn waits_in_words(&self) -> String {
        let hastened = usize::from(self.policy.variant(self.tier).first.is_some());
        let mut runs: Vec<(usize, String)> = Vec::new();
        for wait in &self.waits[hastened..] {
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
        let first = self
            .waits
            .first()
            .filter(|_| hastened == 1)
            .map(|wait| format!("within {}", human(wait.after)));
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
            Jitter::Decorrelated if self.policy.cap == WAIT_MAX => {
                ", each drawn anew, up to three times the one before".to_owned()
            }
            Jitter::Decorrelated => {
                format!(
                    ", each drawn anew, up to three times the one before and never above {}",
                    human(self.policy.cap)
                )
            }
            Jitter::Spread(share) => format!(", each give or take {share}"),
            Jitter::Add(share) => format!(", each plus up to {share}"),
        }
    }
}

/// A sentence lists no more waits than this: the table has them all.
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
        notes: vec!["a TTL of 0 means now or never: the policy has no say".to_owned()],
        text: format!(
            "Tries once, within {within} of accept, or never. Survives no outage; a message that fails expires."
        ),
    }
}

#[cfg(test)]
mod tests {
    use super::super::{JitterSpec, PolicySpec};
    use super::*;

    fn webhook(tier: Tier, ttl: Option<u64>) -> Preview {
        Policy::default().preview(tier, ttl.map(Duration::from_secs))
    }

    fn jittered(kind: &str) -> PolicySpec {
        PolicySpec {
            jitter: JitterSpec {
                kind: Some(kind.to_owned()),
                share: None,
            },
            ..PolicySpec::default()
        }
    }

    fn preview(spec: &PolicySpec) -> Preview {
        Policy::build(spec)
            .expect("a valid policy")
            .preview(Tier::Promotional, None)
    }

    #[test]
    fn the_table_is_one_a_person_reads() {
        insta::assert_snapshot!(webhook(Tier::Promotional, None).table(), @r"
        retry  wait  earliest  latest  since accept
            1   10s        8s     12s           10s
            2   30s       24s     36s           40s
            3    2m    1m 36s  2m 24s        2m 40s
            4   10m        8m     12m       12m 40s
            5   30m       24m     36m       42m 40s
            6    2h    1h 36m  2h 24m        2h 42m
            7    8h    6h 24m  9h 36m       10h 42m
            8    1d   19h 12m   1d 4h        1d 10h
        largest wait: 1d 4h
        survives for certain: 1d 3h
        ");
        insta::assert_snapshot!(webhook(Tier::Transactional, Some(86_400)).table(), @r"
        retry  wait  earliest   latest  since accept
            1    1s     800ms       1s            1s
            2   15s       12s      18s           16s
            3    1m       48s   1m 12s        1m 16s
            4    5m        4m       6m        6m 16s
            5   15m       12m      18m       21m 16s
            6    1h       48m   1h 12m        1h 21m
            7    4h    3h 12m   4h 48m        5h 21m
            8   12h    9h 36m  14h 24m       17h 21m
        largest wait: 14h 24m
        survives for certain: 13h 53m
        note: transactional: the first retry comes within 1s; jitter only shortens it
        ");
    }

    #[test]
    fn the_words_are_ones_to_tell_a_customer() {
        insta::assert_snapshot!(webhook(Tier::Promotional, None).text, @"Tries 9 times over about 1d 10h: at once, then after 10s, 30s, 2m, 10m, 30m, 2h, 8h and 1d, each give or take 20%. Survives an outage of up to 1d 3h; a message still not delivered then becomes a dead letter.");
        insta::assert_snapshot!(webhook(Tier::Transactional, None).text, @"Tries 9 times over about 17h 21m: at once, then within 1s, then after 15s, 1m, 5m, 15m, 1h, 4h and 12h, each give or take 20%. Survives an outage of up to 13h 53m; a message still not delivered then becomes a dead letter.");
        insta::assert_snapshot!(webhook(Tier::Engagement, None).text, @"Tries 9 times over about 2d 21h: at once, then after 20s, 1m, 4m, 20m, 1h, 4h, 16h and 2d, each give or take 20%. Survives an outage of up to 2d 7h; a message still not delivered then becomes a dead letter.");
        insta::assert_snapshot!(Policy::preset("fixed").expect("a preset").preview(Tier::Promotional, None).text, @"Tries 5 times over about 4m: at once, then after 4 × 1m. Survives an outage of up to 4m; a message still not delivered then becomes a dead letter.");
        insta::assert_snapshot!(preview(&jittered("full")).text, @"Tries 9 times over about 2m 1s: at once, then after 2s, 4s, 8s, 16s, 32s and 3 × 1m, each cut at random to anything below. Survives no outage for certain, since jitter may make every wait next to nothing; a message still not delivered then becomes a dead letter.");
        insta::assert_snapshot!(preview(&jittered("decorrelated")).text, @"Tries 9 times over about 3m 52s: at once, then after 4s, 7s, 11s, 18s, 28s, 43s, 1m and 1m, each drawn anew, up to three times the one before and never above 1m. Survives an outage of up to 16s; a message still not delivered then becomes a dead letter.");
        insta::assert_snapshot!(preview(&PolicySpec { max_attempts: Some(1), ..PolicySpec::default() }).text, @"Tries once; there is no retry. Survives no outage; a message that fails becomes a dead letter.");
    }

    #[test]
    fn a_ttl_cuts_the_schedule_short_and_says_so() {
        insta::assert_snapshot!(webhook(Tier::Promotional, Some(0)).text, @"Tries once, within 5s of accept, or never. Survives no outage; a message that fails expires.");
        insta::assert_snapshot!(webhook(Tier::Promotional, Some(1)).text, @"Tries once; no retry fits into its TTL of 1s. Survives no outage; a message that fails expires.");
        insta::assert_snapshot!(webhook(Tier::Promotional, Some(3_600)).text, @"Tries 6 times over about 42m 40s, within its TTL of 1h: at once, then after 10s, 30s, 2m, 10m and 30m, each give or take 20%. Survives an outage of up to 34m 8s; a message still not delivered then expires.");
        insta::assert_snapshot!(webhook(Tier::Promotional, Some(125_000)).text, @"Tries 8 to 9 times over about 1d 10h, within its TTL of 1d 10h: at once, then after 10s, 30s, 2m, 10m, 30m, 2h, 8h and 1d, each give or take 20%. Survives an outage of up to 8h 34m; a message still not delivered then becomes a dead letter or expires.");
        insta::assert_snapshot!(webhook(Tier::Promotional, Some(3_600)).notes.join("\n"), @"the policy outlasts the TTL of 1h: its last retry would come 1d 10h after accept; what is not delivered by the TTL expires");
        assert_eq!(
            webhook(Tier::Promotional, Some(7 * 86_400)),
            webhook(Tier::Promotional, None)
        );
    }

    #[test]
    fn a_window_cuts_the_schedule_short_and_says_so() {
        let spec = PolicySpec {
            window: Some(Duration::from_secs(100)),
            ..PolicySpec::default()
        };
        let preview = preview(&spec);
        insta::assert_snapshot!(preview.text, @"Tries 6 to 7 times over about 1m 40s, within a window of 1m 40s: at once, then after 2s, 4s, 8s, 16s, 32s and 1m, each give or take 20%. Survives an outage of up to 49s; a message still not delivered then becomes a dead letter.");
        insta::assert_snapshot!(preview.notes.join("\n"), @"the window of 1m 40s ends before the attempts do: the last retry would come 4m 2s after accept");
    }

    #[test]
    fn a_long_schedule_is_not_listed_wait_by_wait() {
        let spec = PolicySpec {
            strategy: Some("linear".to_owned()),
            cap: Some(Duration::from_secs(86_400)),
            max_attempts: Some(1_000),
            ..PolicySpec::default()
        };
        insta::assert_snapshot!(preview(&spec).text, @"Tries 1000 times over about 11d 13h: at once, then after 2s, 4s, 6s, 8s, 10s, 12s, … and 33m 18s, each give or take 20%. Survives an outage of up to 9d 6h; a message still not delivered then becomes a dead letter.");
        assert_eq!(preview(&spec).waits.len(), 999);
    }

    #[test]
    fn the_largest_wait_is_the_cap_and_its_share() {
        let largest = |kind| preview(&jittered(kind)).largest_wait;
        let second = Duration::from_secs;
        assert_eq!(["none", "full", "equal", "decorrelated"].map(largest), [second(60); 4]);
        assert_eq!(["spread", "add"].map(largest), [second(72); 2]);
    }

    #[test]
    fn what_is_risky_or_idle_is_noted() {
        let spec = PolicySpec {
            strategy: Some("list".to_owned()),
            delays: Some(vec![Duration::from_secs(5), Duration::from_secs(50)]),
            base: Some(Duration::from_secs(1)),
            max_attempts: Some(6),
            jitter: JitterSpec {
                kind: Some("none".to_owned()),
                share: Some(0.5),
            },
            ..PolicySpec::default()
        };
        insta::assert_snapshot!(preview(&spec).notes.join("\n"), @r"
        no jitter: what fails together comes back together
        the last of the 2 delays repeats up to 5 retries
        base is set but has no part in list
        jitter.share is set but has no part in none
        ");
        insta::assert_snapshot!(preview(&PolicySpec { max_attempts: Some(2), ..spec.clone() }).notes.join("\n"), @r"
        no jitter: what fails together comes back together
        1 of the 2 delays used: max_attempts allows no more
        base is set but has no part in list
        jitter.share is set but has no part in none
        ");
        let decorrelated = PolicySpec {
            jitter: jittered("decorrelated").jitter,
            ..spec
        };
        insta::assert_snapshot!(preview(&decorrelated).notes.join("\n"), @r"
        decorrelated is cut at the cap of 50s after jitter: late retries gather at exactly that wait
        decorrelated takes only the first of the delays and grows by itself
        base is set but has no part in list
        ");
        let stuck = PolicySpec {
            base: Some(Duration::from_secs(60)),
            ..jittered("decorrelated")
        };
        insta::assert_snapshot!(preview(&stuck).notes.join("\n"), @"decorrelated is cut at the cap of 1m after jitter, and here nothing is left of it: raise the cap above the first wait");
    }

    #[test]
    fn a_policy_outlasts_a_ttl_that_may_cut_its_last_retry() {
        let policy = Policy::default();
        let latest = Duration::from_secs(124_960 * 12 / 10);
        assert!(policy.outlasts(Tier::Promotional, latest));
        assert!(!policy.outlasts(Tier::Promotional, latest + Duration::from_secs(1)));
        assert!(
            !policy.outlasts(Tier::Promotional, Duration::ZERO),
            "now or never is a wish, not a mistake"
        );
        let windowed = Policy::preset("web-push").expect("a preset");
        assert!(!windowed.outlasts(Tier::Engagement, Duration::from_secs(86_400)));
    }
}
