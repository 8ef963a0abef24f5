//! How each receiver of the demo answers. It depends only on the demo's time and on earlier requests.

use std::ops::Range;
use std::time::Duration;

use super::plan::{DemoPlan, ReceiverName};

/// A request that would wait longer than this is refused with 503.
const WAIT_MAX: Duration = Duration::from_secs(2);
/// A request may still arrive this long after a `Retry-After`: it was sent before that was read.
const IN_FLIGHT_MAX: Duration = Duration::from_secs(15);

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct ReceiverReply {
    pub(super) after: Duration,
    /// The HTTP status; `None` never answers.
    pub(super) status: Option<u16>,
    /// The `Retry-After` header, in seconds.
    pub(super) retry_after: Option<u64>,
}

impl ReceiverReply {
    const fn at_once(status: u16) -> Self {
        Self { after: Duration::ZERO, status: Some(status), retry_after: None }
    }
}

const TAKEN: ReceiverReply = ReceiverReply::at_once(204);

/// The health of a receiver, as the display colours it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ReceiverHealth {
    Well,
    Slow,
    Ill,
}

#[derive(Debug)]
pub(super) enum ReceiverBehaviour {
    /// Takes every request.
    Healthy,
    /// Refuses every request during an outage; otherwise takes one after the other.
    Down { outage: Range<Duration>, service: Duration, busy_until: Duration },
    /// Answers 429 with `Retry-After` in two periods. `since` is the time of the first 429 of the current period.
    Throttles { quiet: [Range<Duration>; 2], since: Option<Duration>, early: usize },
    /// Accepts connections and never answers.
    Tarpit,
    /// Answers 503, and 410 from a time on.
    Gone { from: Duration },
    /// Answers 404 until it is repaired.
    Broken { until: Duration },
}

impl ReceiverBehaviour {
    pub(super) fn of(who: ReceiverName, plan: &DemoPlan) -> Self {
        match who {
            ReceiverName::Shop => Self::Healthy,
            ReceiverName::Billing => Self::Down {
                outage: plan.outage.clone(),
                service: Duration::from_secs_f64(1.0 / plan.capacity),
                busy_until: Duration::ZERO,
            },
            ReceiverName::Crm => Self::Throttles { quiet: plan.quiet.clone(), since: None, early: 0 },
            ReceiverName::Partner => Self::Tarpit,
            ReceiverName::Legacy => Self::Gone { from: plan.gone },
            ReceiverName::Erp => Self::Broken { until: plan.mended },
        }
    }

    pub(super) fn answer(&mut self, now: Duration) -> ReceiverReply {
        match self {
            Self::Healthy => TAKEN,
            Self::Down { outage, .. } if outage.contains(&now) => ReceiverReply::at_once(502),
            Self::Down { service, busy_until, .. } => {
                let begins = now.max(*busy_until);
                if begins - now > WAIT_MAX {
                    return ReceiverReply::at_once(503);
                }
                *busy_until = begins + *service;
                ReceiverReply { after: *busy_until - now, ..TAKEN }
            }
            Self::Throttles { quiet, since, early } => {
                let Some(quiet) = quiet.iter().find(|quiet| quiet.contains(&now)) else {
                    *since = None;
                    return TAKEN;
                };
                let first = *since.get_or_insert(now);
                *early += usize::from(now > first + IN_FLIGHT_MAX);
                let seconds = (quiet.end - now).as_secs_f64().ceil();
                ReceiverReply { retry_after: Some(whole(seconds)), ..ReceiverReply::at_once(429) }
            }
            Self::Tarpit => ReceiverReply { status: None, ..TAKEN },
            Self::Gone { from } => ReceiverReply::at_once(if now < *from { 503 } else { 410 }),
            Self::Broken { until } => ReceiverReply::at_once(if now < *until { 404 } else { 204 }),
        }
    }

    pub(super) fn does(&self, now: Duration) -> (ReceiverHealth, String) {
        match self {
            Self::Healthy => (ReceiverHealth::Well, "takes everything".to_owned()),
            Self::Down { outage, .. } if outage.contains(&now) => (ReceiverHealth::Ill, "down: 502".to_owned()),
            Self::Down { service, .. } => (ReceiverHealth::Well, format!("takes {:.1}/s", 1.0 / service.as_secs_f64())),
            Self::Throttles { quiet, .. } if quiet.iter().any(|quiet| quiet.contains(&now)) => {
                (ReceiverHealth::Slow, "429 with Retry-After".to_owned())
            }
            Self::Throttles { .. } => (ReceiverHealth::Well, "takes everything".to_owned()),
            Self::Tarpit => (ReceiverHealth::Ill, "a tarpit: no answer".to_owned()),
            Self::Gone { from } if now < *from => (ReceiverHealth::Slow, "overloaded: 503".to_owned()),
            Self::Gone { .. } => (ReceiverHealth::Ill, "gone: 410".to_owned()),
            Self::Broken { until } if now < *until => (ReceiverHealth::Ill, "broken: 404".to_owned()),
            Self::Broken { .. } => (ReceiverHealth::Well, "repaired, takes everything".to_owned()),
        }
    }

    /// The number of requests that came before the time of a `Retry-After`.
    pub(super) fn early(&self) -> usize {
        match self {
            Self::Throttles { early, .. } => *early,
            _ => 0,
        }
    }
}

fn whole(seconds: f64) -> u64 {
    #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "the length of a demo in seconds")]
    let seconds = seconds.max(1.0) as u64;
    seconds
}

#[cfg(test)]
mod tests {
    use super::*;

    fn role(who: ReceiverName) -> (DemoPlan, ReceiverBehaviour) {
        let plan = DemoPlan::new(15, 6_000).expect("a plan");
        let role = ReceiverBehaviour::of(who, &plan);
        (plan, role)
    }

    fn minutes(minutes: f64) -> Duration {
        Duration::from_secs_f64(minutes * 60.0)
    }

    #[test]
    fn a_receiver_back_from_an_outage_takes_requests_one_after_the_other() {
        let (plan, mut billing) = role(ReceiverName::Billing);
        let service = Duration::from_secs_f64(1.0 / plan.capacity);
        let first = billing.answer(minutes(1.0));
        assert_eq!((first.status, first.after), (Some(204), service));
        assert_eq!(billing.answer(minutes(1.0)).after, service * 2);
        assert_eq!(billing.answer(minutes(3.0)), ReceiverReply::at_once(502));
        let many: Vec<ReceiverReply> = (0..20).map(|_| billing.answer(minutes(7.0))).collect();
        // Two seconds of waiting at a little less than 6 a second, the request under way included.
        assert_eq!(many.iter().filter(|reply| reply.status == Some(204)).count(), 12);
    }

    #[test]
    fn retry_after_lasts_to_the_end_of_the_period_and_earlier_requests_are_counted() {
        let (_, mut crm) = role(ReceiverName::Crm);
        assert_eq!(crm.answer(minutes(2.0)), TAKEN);
        let refused = crm.answer(minutes(3.0));
        assert_eq!((refused.status, refused.retry_after), (Some(429), Some(60)));
        assert_eq!(crm.answer(minutes(3.1)).retry_after, Some(54));
        assert_eq!(crm.early(), 0, "a request that was under way does not count");
        crm.answer(minutes(3.5));
        assert_eq!(crm.early(), 1);
        assert_eq!(crm.answer(minutes(4.0)), TAKEN);
        crm.answer(minutes(9.0));
        assert_eq!(crm.early(), 1, "the first request of the second period does not count");
    }

    #[test]
    fn each_role_answers_with_its_status() {
        let statuses = |who, times: [f64; 2]| {
            let (_, mut role) = role(who);
            times.map(|time| role.answer(minutes(time)).status)
        };
        assert_eq!(statuses(ReceiverName::Shop, [0.0, 14.0]), [Some(204), Some(204)]);
        assert_eq!(statuses(ReceiverName::Partner, [0.0, 14.0]), [None, None]);
        assert_eq!(statuses(ReceiverName::Legacy, [0.0, 3.0]), [Some(503), Some(410)]);
        assert_eq!(statuses(ReceiverName::Erp, [0.0, 9.0]), [Some(404), Some(204)]);
    }
}
