//! The receivers of a run: the result of each request, and the log of requests.

use std::collections::BTreeMap;
use std::time::Duration;

use fastrand::Rng;
use posthaste_core::classify;
use posthaste_core::scheduler::AttemptStart;
use posthaste_core::{Cause, Verdict, VerdictScope};

use super::history::{Ms, SentRequest};
use super::plan::{LanePlan, Mode, RunPlan};

/// The timeout of an attempt.
const ATTEMPT_TIMEOUT: Ms = 30_000;
/// The timeout of a breaker's probe.
const PROBE_TIMEOUT: Ms = 10_000;
/// The time of a request at a receiver with a queue.
const SERVICE: Ms = 20;
/// The longest wait in such a queue; beyond it requests get 503.
const LONGEST_WAIT: Ms = 2_000;

/// With a receiver that throttles or browns out, one delivery in this many gets a wait for itself alone. Chosen by its
/// id, so that the random numbers of a seed do not change.
const THROTTLED_ALONE: u64 = 3;
/// The length of that wait where the receiver browns out: longer than its breaker stays open.
const ALONE_SECONDS: u64 = 200;

/// The result of an attempt, and its time.
#[derive(Clone, Copy, Debug)]
pub struct RequestFate {
    /// The time from the attempt to its result.
    pub after: Duration,
    /// The result, as a channel judges it.
    pub verdict: Verdict,
    /// The time from the request to its receipt, if there is one.
    pub receipt_after: Option<Duration>,
    /// The index of the request in the log; `None` if no request left.
    pub request: Option<usize>,
}

/// All receivers of a run.
#[derive(Debug)]
pub struct SimulatedWire {
    lanes: BTreeMap<u64, LanePlan>,
    busy_until: BTreeMap<u64, Ms>,
    not_started_milli: u32,
    healed_at: Ms,
    rng: Rng,
    /// Requests in the order they left.
    pub log: Vec<SentRequest>,
}

impl SimulatedWire {
    /// The receivers of a plan, with a random generator of their own.
    pub fn new(plan: &RunPlan) -> Self {
        Self {
            lanes: plan.lanes.iter().map(|lane| (lane.settings.lane.raw(), lane.clone())).collect(),
            busy_until: BTreeMap::new(),
            not_started_milli: plan.not_started_milli,
            healed_at: plan.healed_at,
            rng: Rng::with_seed(plan.seed ^ 0x57_49_52_45),
            log: Vec::new(),
        }
    }

    /// Makes an attempt at `now`. The time by the node's clock is `stamped`, and the highest attempt of the delivery's
    /// history is `recorded`.
    pub fn send(&mut self, now: Ms, stamped: Ms, start: &AttemptStart, recorded: u16) -> RequestFate {
        if now < self.healed_at && self.rng.u32(..1_000) < self.not_started_milli {
            let verdict = Verdict::of(Cause::NotStarted);
            return RequestFate { after: Duration::ZERO, verdict, receipt_after: None, request: None };
        }
        let lane = start.lane.raw();
        let mode = self.lanes.get(&lane).map_or(Mode::Down, |lane| lane.mode(now));
        let (mut after, mut verdict) = self.answer(now, lane, mode);
        if start.probe && after > PROBE_TIMEOUT {
            (after, verdict) = (PROBE_TIMEOUT, Verdict::of(Cause::Unknown));
        }
        if start.delivery.raw().is_multiple_of(THROTTLED_ALONE) {
            verdict = throttled_alone(mode, verdict);
        }
        let request = self.log.len();
        self.log.push(SentRequest {
            left_at: now,
            stamped,
            delivery: start.delivery.raw(),
            lane,
            attempt: start.attempt,
            recorded,
            answered_at: None,
            cause: verdict.cause.code(),
            status: verdict.status,
            retry_after: verdict.retry_after.map(|wait| i64::try_from(wait.as_millis()).unwrap_or(Ms::MAX)),
            asks_lane: verdict.scope != VerdictScope::Endpoint,
        });
        let sends_receipt = verdict.status == Some(200) && self.rng.u32(..4) > 0;
        // Some receipts overtake the answer, some are late, and some never come.
        let receipt_after =
            sends_receipt.then(|| Duration::from_millis(self.rng.u64(1..400_000) >> self.rng.u32(..12)));
        let after = Duration::from_millis(u64::try_from(after.max(1)).unwrap_or(1));
        RequestFate { after, verdict, receipt_after, request: Some(request) }
    }

    fn answer(&mut self, now: Ms, lane: u64, mode: Mode) -> (Ms, Verdict) {
        let quick = self.rng.i64(1..60);
        match mode {
            Mode::Healthy(ms) => (quick + self.rng.i64(0..=i64::try_from(ms).unwrap_or(0)), status(200, None)),
            Mode::Queue => self.queue(now, lane, quick),
            Mode::Brownout(share) => {
                let slow = quick + self.rng.i64(0..3_000);
                let fails = self.rng.f64() < share;
                (slow, if fails { status(500, None) } else { status(200, None) })
            }
            Mode::Split if self.rng.u32(..4) > 0 => (quick, Verdict::of(Cause::ConnectRefused)),
            Mode::Split => {
                let slow = self.rng.i64(28_000..ATTEMPT_TIMEOUT);
                (slow, if self.rng.bool() { status(200, None) } else { status(404, None) })
            }
            Mode::Tarpit => (ATTEMPT_TIMEOUT, Verdict::of(Cause::Unknown)),
            Mode::Throttle(after) => (quick, status(429, after)),
            Mode::Unavailable(after) => (quick, status(503, after)),
            Mode::Down => (quick, Verdict::of(Cause::ConnectRefused)),
            Mode::Breaks => (quick, Verdict::of(Cause::Unknown)),
            Mode::Lies => (quick, status(500, None)),
            Mode::Status(code) => (quick, status(code, None)),
            Mode::NoName => (quick, Verdict::of(Cause::DnsNotFound)),
        }
    }

    fn queue(&mut self, now: Ms, lane: u64, quick: Ms) -> (Ms, Verdict) {
        let busy_until = self.busy_until.entry(lane).or_insert(now);
        let begins = (*busy_until).max(now);
        if begins - now > LONGEST_WAIT {
            return (quick, status(503, None));
        }
        *busy_until = begins + SERVICE;
        (begins + SERVICE - now, status(200, None))
    }
}

/// The answer to a delivery that gets a wait for itself alone.
fn throttled_alone(mode: Mode, answer: Verdict) -> Verdict {
    match (mode, answer.status) {
        (Mode::Throttle(_), _) => Verdict { scope: VerdictScope::Endpoint, ..answer },
        (Mode::Brownout(_), Some(500)) => Verdict { scope: VerdictScope::Endpoint, ..status(429, Some(ALONE_SECONDS)) },
        _ => answer,
    }
}

/// The verdict on an answer with this status, as a channel judges it.
fn status(code: u16, retry_after: Option<u64>) -> Verdict {
    let cause = classify::status(code);
    let heeded = retry_after.filter(|_| classify::heeds_retry_after(code));
    Verdict { status: Some(code), retry_after: heeded.map(Duration::from_secs), ..Verdict::of(cause) }
}
