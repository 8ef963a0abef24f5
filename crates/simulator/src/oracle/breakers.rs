//! While a breaker is open, nothing is sent but probes, one at a time (E1). Judged by the log of requests alone.
//!
//! An observer outside does not know exactly when a breaker opens, so its rules are read in a strict and in a loose
//! sense. If the strict reading says open, the breaker is open, and every request is judged. If only the loose reading
//! does, its state is unknown, and the breaker is not judged any more. After a crash a breaker that was open, or may
//! have been, is unknown too: it probes first, unless the crash came before its opening or its closing was recorded.

use posthaste_core::OriginId;

use super::{Facts, SentRequest, Violation, violation};
use crate::history::Ms;

/// Failures in a row that open an endpoint's breaker.
const IN_A_ROW: usize = 10;
/// The least number of answers for which a share of failures counts.
const VOLUME: usize = 20;
/// The shortest time that a breaker stays open: 30 s less a tenth.
const SHORTEST_HOLD: Ms = 27_000;
/// The time open grows by half with each probe that fails, up to 60 s while messages wait; less a tenth.
const HOLD_GROWS_TO: Ms = 54_000;
/// Probes in a row that must succeed to close a breaker.
const PROBES: u8 = 3;
/// After about an hour without requests a destination may be evicted from memory, and its breaker with it.
const FORGOTTEN: Ms = 3_500_000;
/// Possible lengths of the window of half a minute, depending on how it is rounded.
const WINDOWS: [Ms; 4] = [28_000, 29_000, 30_000, 31_000];

/// The least number of deliveries waiting for a breaker that counts as a backlog.
const BACKLOG: usize = 5;

impl<'a> Facts<'a> {
    pub(super) fn breakers_hold(&self, found: &mut Vec<Violation>) {
        for (lane, requests) in &self.by_lane {
            let watch = self.watch(Kind::Endpoint, requests);
            found.extend(watch.broken.iter().map(|seen| sent_while_open(&format!("lane {lane}"), seen)));
        }
        for (origin, requests) in self.by_origin() {
            let watch = self.watch(Kind::Origin, &requests);
            found.extend(watch.broken.iter().map(|seen| sent_while_open(&format!("origin {origin:x}"), seen)));
        }
    }

    /// How often a breaker certainly opened, and how often one closed with a backlog waiting.
    pub(super) fn breakers_seen(&self) -> (usize, usize) {
        let (mut opened, mut drained) = (0, 0);
        for requests in self.by_lane.values() {
            let watch = self.watch(Kind::Endpoint, requests);
            opened += watch.opened;
            let waited = |at: Ms| {
                let old = |it: &&&SentRequest| self.sent.get(&it.delivery).is_some_and(|(sent, _)| sent.called_at < at);
                requests.iter().filter(|it| it.left_at >= at && it.attempt == 1).filter(old).count()
            };
            drained += watch.closed.iter().filter(|at| waited(**at) >= BACKLOG).count();
        }
        (opened, drained)
    }

    fn watch<'r>(&self, kind: Kind, requests: &'r [&'a SentRequest]) -> Watch<'r, 'a> {
        let mut watch = Watch::new(kind, requests);
        // Times are measured by the node's clock: where it jumps, breakers cannot be judged.
        if !self.plan.clock_jumps {
            let crashes: Vec<Ms> = self.history.crashes.iter().map(|crash| crash.at).collect();
            watch.run(&crashes);
        }
        watch
    }

    /// The requests to each origin that lanes share, in the order in which they left.
    fn by_origin(&self) -> Vec<(u64, Vec<&'a SentRequest>)> {
        let origin = |lane: u64| self.lane(lane)?.settings.origin.map(OriginId::raw);
        let mut origins: Vec<u64> =
            self.plan.lanes.iter().filter_map(|lane| Some(lane.settings.origin?.raw())).collect();
        origins.sort_unstable();
        origins.dedup();
        let requests = |of: u64| self.history.requests.iter().filter(move |it| origin(it.lane) == Some(of)).collect();
        origins.into_iter().map(|of| (of, requests(of))).collect()
    }
}

fn sent_while_open(breaker: &str, seen: &str) -> Violation {
    violation("nothing is sent while a breaker is open", format!("{breaker}: {seen}"))
}

/// The kind of a breaker: an endpoint's or an origin's.
#[derive(Clone, Copy, PartialEq)]
enum Kind {
    Endpoint,
    /// Failures in a row do not open it, and a share of failures only if two endpoints contribute to it.
    Origin,
}

impl Kind {
    /// How many lanes must have failed for a share of failures to count.
    fn lanes(self) -> usize {
        match self {
            Self::Endpoint => 1,
            Self::Origin => 2,
        }
    }
}

/// How an answer counts for a destination's breaker.
#[derive(Clone, Copy, PartialEq)]
enum Said {
    Success,
    Failure,
    Overload,
    Nothing,
    /// A failure in the loose reading, nothing in the strict one.
    Doubtful,
}

fn answer_kind(request: &SentRequest) -> Said {
    match (request.status, request.cause) {
        (Some(200..=299), _) => Said::Success,
        // The receiver asks for a wait of one delivery alone, so the receiver itself is healthy.
        _ if !request.asks_lane => Said::Nothing,
        (Some(429 | 503), _) => Said::Overload,
        (Some(408 | 500..=599), _) => Said::Failure,
        (Some(_), _) => Said::Nothing,
        (None, "dns_not_found" | "tls_certificate") => Said::Doubtful,
        (None, _) => Said::Failure,
    }
}

enum Standing {
    Closed(Counts),
    /// Certainly open since `since`, and at least until `until`.
    Open {
        since: Ms,
        until: Ms,
        hold: Ms,
    },
    HalfOpen {
        hold: Ms,
        probe: Option<usize>,
        successes: u8,
    },
    Unknown,
}

/// The answers since a breaker closed.
#[derive(Default)]
struct Counts {
    /// The index of the first request whose answer counts.
    from: usize,
    /// Failures in a row, in the strict and the loose reading.
    least: usize,
    most: usize,
    window: Vec<(Ms, Said, u64)>,
    /// Since when it may be open, in the loose reading. A request that leaves soon after shows that it was not; an
    /// answer that opens it in the strict reading shows that it was, or is now.
    doubt: Option<Ms>,
}

/// Follows one breaker through the log.
struct Watch<'r, 'a> {
    kind: Kind,
    requests: &'r [&'a SentRequest],
    standing: Standing,
    broken: Vec<String>,
    opened: usize,
    closed: Vec<Ms>,
}

impl<'r, 'a> Watch<'r, 'a> {
    fn new(kind: Kind, requests: &'r [&'a SentRequest]) -> Self {
        let standing = Standing::Closed(Counts::default());
        Self { kind, requests, standing, broken: Vec::new(), opened: 0, closed: Vec::new() }
    }

    fn run(&mut self, crashes: &[Ms]) {
        let mut answers: Vec<(Ms, usize)> = Vec::new();
        for (place, request) in self.requests.iter().enumerate() {
            answers.extend(request.answered_at.map(|at| (at, place)));
        }
        answers.sort_unstable();
        let (mut answers, mut crashes) = (answers.as_slice(), crashes);
        for (place, request) in self.requests.iter().enumerate() {
            while let Some(crash) = crashes.first().filter(|crash| **crash < request.left_at) {
                answers = self.answers_until(*crash, answers, place);
                self.crashed(place);
                crashes = &crashes[1..];
            }
            // At the same instant answers come first: one of them may have closed the breaker for the request.
            answers = self.answers_until(request.left_at, answers, place);
            self.left(place);
        }
    }

    fn answers_until<'s>(&mut self, until: Ms, mut answers: &'s [(Ms, usize)], place: usize) -> &'s [(Ms, usize)] {
        while let Some((at, _)) = answers.first().filter(|(at, _)| *at <= until) {
            let same = answers.iter().take_while(|(other, _)| other == at).count();
            let batch: Vec<usize> = answers[..same].iter().map(|(_, place)| *place).collect();
            self.answered(*at, &batch, place);
            answers = &answers[same..];
        }
        answers
    }

    fn crashed(&mut self, place: usize) {
        self.standing = match &self.standing {
            Standing::Closed(counts) if self.opened == 0 && counts.doubt.is_none() => {
                Standing::Closed(Counts { from: place, ..Counts::default() })
            }
            _ => Standing::Unknown,
        };
    }

    fn left(&mut self, place: usize) {
        let request = self.requests[place];
        let idle = place.checked_sub(1).map_or(0, |last| request.left_at - self.requests[last].left_at);
        match &mut self.standing {
            Standing::Open { .. } | Standing::HalfOpen { .. } if idle > FORGOTTEN => self.standing = Standing::Unknown,
            Standing::Closed(counts) => {
                if idle > FORGOTTEN {
                    counts.least = 0;
                }
                match counts.doubt {
                    Some(since) if request.left_at >= since + SHORTEST_HOLD => self.standing = Standing::Unknown,
                    Some(since) if request.left_at > since => counts.doubt = None,
                    _ => {}
                }
            }
            Standing::Open { since, .. } if request.left_at <= *since => {} // it may have left before
            Standing::Open { since, until, .. } if request.left_at < *until => {
                let early =
                    format!("delivery {} left {} ms after it opened", request.delivery, request.left_at - *since);
                self.broken.push(early);
                self.standing = Standing::Unknown;
            }
            Standing::Open { hold, .. } => {
                self.standing = Standing::HalfOpen { hold: *hold, probe: Some(place), successes: 0 };
            }
            Standing::HalfOpen { probe: Some(probe), .. } => {
                let probe = self.requests[*probe].delivery;
                self.broken.push(format!("delivery {} left beside its probe, delivery {probe}", request.delivery));
                self.standing = Standing::Unknown;
            }
            Standing::HalfOpen { probe, .. } => *probe = Some(place),
            Standing::Unknown => {}
        }
    }

    /// Handles the answers of one instant, before which `left` requests had left.
    fn answered(&mut self, at: Ms, batch: &[usize], left: usize) {
        match &mut self.standing {
            Standing::Closed(counts) => {
                let answer = |place: &usize| (at, answer_kind(self.requests[*place]), self.requests[*place].lane);
                let fresh: Vec<_> = batch.iter().filter(|place| **place >= counts.from).map(answer).collect();
                match counts.take(at, &fresh, self.kind) {
                    Verdict::Stays => {}
                    Verdict::Opens => {
                        self.opened += 1;
                        let until = counts.doubt.unwrap_or(at) + SHORTEST_HOLD;
                        self.standing = Standing::Open { since: at, until, hold: SHORTEST_HOLD };
                    }
                    Verdict::MayOpen => {
                        counts.doubt.get_or_insert(at);
                    }
                }
            }
            Standing::HalfOpen { hold, probe, successes } => {
                let Some(place) = probe.filter(|probe| batch.contains(probe)) else { return };
                *probe = None;
                match answer_kind(self.requests[place]) {
                    Said::Nothing => {}
                    Said::Success => *successes += 1,
                    Said::Doubtful => self.standing = Standing::Unknown,
                    Said::Failure | Said::Overload => {
                        let hold = (*hold + *hold / 2).min(HOLD_GROWS_TO);
                        self.standing = Standing::Open { since: at, until: at + hold, hold };
                    }
                }
                if matches!(self.standing, Standing::HalfOpen { successes: PROBES, .. }) {
                    self.closed.push(at);
                    self.standing = Standing::Closed(Counts { from: left, ..Counts::default() });
                }
            }
            Standing::Open { .. } | Standing::Unknown => {}
        }
    }
}

/// The effect of answers on a closed breaker.
enum Verdict {
    Stays,
    Opens,
    /// It opens in the loose reading, but not in the strict one.
    MayOpen,
}

impl Counts {
    /// Adds the answers of one instant. Their order is unknown.
    fn take(&mut self, at: Ms, fresh: &[(Ms, Said, u64)], kind: Kind) -> Verdict {
        let count = |what: Said| fresh.iter().filter(|(_, kind, _)| *kind == what).count();
        let (successes, failures) = (count(Said::Success), count(Said::Failure));
        let (overloads, doubtful) = (count(Said::Overload), count(Said::Doubtful));
        self.most += failures + doubtful;
        self.least += failures;
        let (row_may, row_must) = (self.most >= IN_A_ROW, self.least >= IN_A_ROW && successes == 0);
        if successes > 0 {
            (self.least, self.most) = (0, failures + doubtful);
        }
        self.window.extend(fresh);
        let (mut may, mut must) = (false, successes == 0);
        for begin in WINDOWS.map(|window| at - window).into_iter().chain([at / 1_000 * 1_000 - 29_000]) {
            for known in self.known_from(kind) {
                let seen = Seen::of(self.window[known..].iter().filter(|(answered, ..)| *answered >= begin));
                // The successes of an instant may have come after its failures.
                let before = Seen { successes: seen.successes.saturating_sub(successes), ..seen };
                may |= failures + doubtful > 0 && before.may_be_failing(kind);
                may |= overloads > 0 && before.may_be_overloaded();
                let overloaded = overloads > 0 && failures == 0 && kind == Kind::Endpoint && seen.is_overloaded();
                must &= overloaded || (failures > 0 && seen.is_failing(kind));
            }
        }
        self.window.retain(|(answered, ..)| *answered >= at - 31_000);
        let in_a_row = kind == Kind::Endpoint;
        if must || (in_a_row && row_must) {
            Verdict::Opens
        } else if may || (in_a_row && row_may) {
            Verdict::MayOpen
        } else {
            Verdict::Stays
        }
    }

    /// The indices in the window from which a breaker may have counted. An endpoint's breaker counts everything; an
    /// origin's exists only from one of its failures on, at the latest from that of a second lane.
    fn known_from(&self, kind: Kind) -> Vec<usize> {
        let mut places = vec![0];
        if kind == Kind::Origin {
            let mut first = None;
            for (place, (_, kind, lane)) in self.window.iter().enumerate() {
                if matches!(kind, Said::Success | Said::Nothing) {
                    continue;
                }
                places.push(place);
                if first.is_some_and(|first| first != lane) && *kind == Said::Failure {
                    break;
                }
                first = first.or((*kind == Said::Failure).then_some(lane));
            }
        }
        places
    }
}

/// The answers of half a minute, counted by kind.
#[derive(Clone, Copy, Default)]
struct Seen {
    successes: usize,
    failures: usize,
    overloads: usize,
    nothing: usize,
    doubtful: usize,
    failed_lanes: usize,
    doubted_lanes: usize,
}

impl Seen {
    fn of<'w>(window: impl Iterator<Item = &'w (Ms, Said, u64)>) -> Self {
        let mut seen = Self::default();
        let (mut failed, mut doubted) = (Vec::new(), Vec::new());
        for (_, kind, lane) in window {
            match kind {
                Said::Success => seen.successes += 1,
                Said::Failure => {
                    seen.failures += 1;
                    failed.push(*lane);
                }
                Said::Overload => seen.overloads += 1,
                Said::Nothing => seen.nothing += 1,
                Said::Doubtful => {
                    seen.doubtful += 1;
                    doubted.push(*lane);
                }
            }
        }
        doubted.extend(&failed);
        for (lanes, count) in [(failed, &mut seen.failed_lanes), (doubted, &mut seen.doubted_lanes)] {
            let mut lanes = lanes;
            lanes.sort_unstable();
            lanes.dedup();
            *count = lanes.len();
        }
        seen
    }

    fn all(&self) -> usize {
        self.successes + self.failures + self.overloads + self.nothing + self.doubtful
    }

    /// Strict reading: half of all answers are failures, and there are enough successes and failures.
    fn is_failing(&self, kind: Kind) -> bool {
        self.failures * 2 >= self.all() && self.successes + self.failures >= VOLUME && self.failed_lanes >= kind.lanes()
    }

    /// Loose reading: doubtful answers count as failures, half of successes and failures are failures, and there are
    /// enough answers of any kind.
    fn may_be_failing(&self, kind: Kind) -> bool {
        let failures = self.failures + self.doubtful;
        failures * 2 >= failures + self.successes && self.all() >= VOLUME && self.doubted_lanes >= kind.lanes()
    }

    /// Strict reading: nine of ten answers are 429 or 503, and there are enough of them.
    fn is_overloaded(&self) -> bool {
        self.overloads * 10 >= self.all() * 9 && self.overloads >= VOLUME
    }

    /// Loose reading: the same, without answers that may not count.
    fn may_be_overloaded(&self) -> bool {
        self.overloads * 10 >= (self.overloads + self.successes + self.failures) * 9 && self.overloads >= VOLUME
    }
}
