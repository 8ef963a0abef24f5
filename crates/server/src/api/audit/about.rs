//! Describes a journal entry for operators: the ids of what it is about, and a few words.
//!
//! A description has nothing that the journal has not: ids, causes and counts, no names and no addresses.

use std::time::Duration;

use posthaste_core::flow::SharedGate;
use posthaste_core::scheduler::{BreakerOf, Reset};
use posthaste_core::{CutScope, DeliveryId, EndpointId, Key, LaneId, MessageId, State as Life, TenantId, Timestamp};
use posthaste_crypto::public_id::IdKind;
use posthaste_store::journal::{ErasedTarget, JournalEntry};
use posthaste_store::{
    ChangeKind, DocumentKind, EndpointStatus, JobState, OPERATOR, PauseScope, RetentionOverride, RetentionPhase,
    SecretAct,
};

use crate::duration;

/// The description of an entry.
#[derive(Default)]
pub(super) struct About {
    pub(super) tenant: Option<TenantId>,
    pub(super) endpoint: Option<EndpointId>,
    /// The lane of an endpoint that the entry does not name.
    pub(super) lane: Option<LaneId>,
    pub(super) message: Option<MessageId>,
    pub(super) delivery: Option<DeliveryId>,
    /// An object that none of the fields above names.
    pub(super) named: Option<NamedObject>,
    pub(super) what: Option<String>,
}

pub(super) enum NamedObject {
    /// An object of this kind with this key, made at this time: together they are its public id.
    Made(IdKind, Key, Timestamp),
    /// A policy, shown by its name.
    Policy(Key),
    /// A gate that endpoints share, shown by its breaker's id.
    Gate(SharedGate),
}

impl About {
    fn of(tenant: TenantId) -> Self {
        Self { tenant: Some(tenant).filter(|tenant| *tenant != OPERATOR), ..Self::default() }
    }

    fn lane(lane: LaneId) -> Self {
        Self { lane: Some(lane), ..Self::default() }
    }

    fn to(endpoint: EndpointId) -> Self {
        Self { endpoint: Some(endpoint), ..Self::default() }
    }

    fn endpoint(endpoint: EndpointId, tenant: TenantId) -> Self {
        Self { endpoint: Some(endpoint), ..Self::of(tenant) }
    }

    fn named(self, named: NamedObject) -> Self {
        Self { named: Some(named), ..self }
    }

    fn saying(self, what: impl Into<String>) -> Self {
        Self { what: Some(what.into()), ..self }
    }
}

pub(super) fn about(entry: &JournalEntry) -> About {
    match entry {
        JournalEntry::Opened { session, .. } => About::default().saying(format!("session {session}")),
        JournalEntry::Accepted { message, tenant, deliveries, .. } => {
            About { message: Some(*message), ..About::of(*tenant) }.saying(format!("{} deliveries", deliveries.len()))
        }
        JournalEntry::Attempted { endpoint, attempt, .. } | JournalEntry::Late { endpoint, attempt, .. } => {
            About::to(*endpoint).saying(attempt.cause.code())
        }
        JournalEntry::Ended { delivery, message, endpoint, state, .. } => {
            About { message: Some(*message), delivery: Some(*delivery), ..About::to(*endpoint) }.saying(end(state))
        }
        JournalEntry::Cut { scope, cause, .. } => cut(*scope).saying(cause.code()),
        JournalEntry::Uncut { scope, .. } => cut(*scope).saying("all of it is written off"),
        JournalEntry::Paused { scope, .. } | JournalEntry::Resumed { scope, .. } => paused(*scope),
        JournalEntry::Hurried { delivery, message, endpoint, .. } => {
            About { message: Some(*message), delivery: Some(*delivery), ..About::to(*endpoint) }
                .saying("retry requested")
        }
        JournalEntry::Reset { of, how, .. } => reset(*of, *how),
        JournalEntry::Endpoint { endpoint, tenant, deed, status, .. } => {
            About::endpoint(*endpoint, *tenant).saying(endpoint_is(*deed, *status))
        }
        JournalEntry::Secret { endpoint, tenant, act, .. } => About::endpoint(*endpoint, *tenant).saying(match act {
            SecretAct::Shown => "shown",
            SecretAct::Rotated => "rotated",
        }),
        JournalEntry::Spread { tenant, deliveries, .. } => {
            About::of(*tenant).saying(format!("{} deliveries", deliveries.len()))
        }
        JournalEntry::Job { job, tenant, state, replay, at, .. } => match replay {
            Some(created) => {
                let named = NamedObject::Made(IdKind::Replay, job.0, *created);
                About::of(*tenant).named(named).saying(format!("replay {}", job_is(*state, created == at)))
            }
            None => {
                let about = About { message: Some(MessageId(job.0)), ..About::of(*tenant) };
                about.saying(format!("fan-out {}", job_is(*state, false)))
            }
        },
        JournalEntry::Purged { tenant, .. } => About::of(*tenant).saying("dead letters taken back"),
        JournalEntry::Retained { phase, removed, tenant, .. } => {
            About { tenant: *tenant, ..About::default() }.saying(format!("{removed} {}", removed_things(*phase)))
        }
        JournalEntry::Agreed { tenant, own, .. } => About::of(*tenant).saying(retention(*own)),
        JournalEntry::Document { kind, id, tenant, made, deed, .. } => {
            let (word, named) = match kind {
                DocumentKind::Tenant => ("tenant", NamedObject::Made(IdKind::Tenant, *id, *made)),
                DocumentKind::ApiKey => ("API key", NamedObject::Made(IdKind::Key, *id, *made)),
                DocumentKind::Policy => ("policy", NamedObject::Policy(*id)),
            };
            About::of(*tenant).named(named).saying(format!("{word} {}", document_is(*kind, *deed)))
        }
        JournalEntry::Erased { tenant, whom, .. } => About::of(*tenant).saying(match whom {
            ErasedTarget::Tenant => "the tenant",
            ErasedTarget::Subject(_) => "a subject",
        }),
        JournalEntry::ErasureDone { announced, .. } => About::default().saying(format!("announced by row {announced}")),
        JournalEntry::Exported { tenant, .. } => About::of(*tenant).saying("a subject"),
        JournalEntry::RotationBegun { to, .. } | JournalEntry::RotationEnded { to, .. } => {
            About::default().saying(format!("to master key {to}"))
        }
    }
}

fn end(state: &Life) -> String {
    let name = state.phase().name();
    match state {
        Life::Dead { cause, .. } | Life::Cancelled { cause, .. } => format!("{name}: {}", cause.code()),
        _ => name.to_owned(),
    }
}

fn cut(scope: CutScope) -> About {
    match scope {
        CutScope::Message(message) => About { message: Some(message), ..About::default() },
        CutScope::Lane(lane) => About::lane(lane),
    }
}

fn paused(scope: PauseScope) -> About {
    match scope {
        PauseScope::All => About::default().saying("everything"),
        PauseScope::Tenant(tenant) => About::of(tenant).saying("a tenant"),
        PauseScope::Lane(lane) => About::lane(lane).saying("an endpoint"),
        PauseScope::Origin(origin) => {
            About::default().named(NamedObject::Gate(SharedGate::Origin(origin))).saying("an origin")
        }
    }
}

fn reset(of: BreakerOf, how: Reset) -> About {
    let about = match of {
        BreakerOf::Lane(lane) => About::lane(lane),
        BreakerOf::Shared(gate) => About::default().named(NamedObject::Gate(gate)),
    };
    about.saying(match how {
        Reset::Probe => "a probe is sent next",
        Reset::Force => "closed at once",
    })
}

fn endpoint_is(deed: ChangeKind, status: EndpointStatus) -> &'static str {
    match (deed, status) {
        (ChangeKind::Removed, _) | (_, EndpointStatus::Deleted) => "deleted",
        (ChangeKind::Made, _) => "made",
        (ChangeKind::Changed, EndpointStatus::Active) => "changed",
        (ChangeKind::Changed, EndpointStatus::Gone) => "gone",
        (ChangeKind::Changed, EndpointStatus::Disabled(_)) => "disabled by its receiver",
    }
}

/// A job's new state; a running job was begun or resumed.
fn job_is(state: JobState, is_new: bool) -> &'static str {
    match state {
        JobState::Running if is_new => "begun",
        JobState::Running => "resumed",
        JobState::Paused => "paused",
        JobState::Done => "done",
        JobState::Cancelled => "cancelled",
    }
}

fn document_is(kind: DocumentKind, deed: ChangeKind) -> &'static str {
    match (deed, kind) {
        (ChangeKind::Made, _) => "made",
        (ChangeKind::Changed, _) => "changed",
        (ChangeKind::Removed, DocumentKind::ApiKey) => "revoked",
        (ChangeKind::Removed, _) => "removed",
    }
}

fn removed_things(phase: RetentionPhase) -> &'static str {
    match phase {
        RetentionPhase::Pending => "deliveries",
        RetentionPhase::Messages | RetentionPhase::Kept => "messages",
        RetentionPhase::History => "outcomes",
        RetentionPhase::Jobs => "jobs",
        RetentionPhase::Keys => "idempotency keys",
        RetentionPhase::Journal => "rows of this trail",
        RetentionPhase::Space => "pages of the file",
    }
}

fn retention(own: RetentionOverride) -> String {
    let kept = |kept: Option<Duration>| kept.map_or("by default".to_owned(), duration::write);
    format!("payload kept {}, history {}", kept(own.payload), kept(own.history))
}

#[cfg(test)]
mod tests {
    use posthaste_store::journal::EntryKind;

    #[test]
    fn docs_audit_md_has_exactly_one_line_for_each_kind() {
        let page = include_str!("../../../../../docs/audit.md");
        let table = page.split_once("| `kind` | records that |").expect("docs/audit.md has the table of kinds").1;
        let lines = table.lines().skip(2).take_while(|line| line.starts_with("| `"));
        let documented: Vec<&str> = lines.filter_map(|line| line[3..].split('`').next()).collect();
        assert_eq!(documented, EntryKind::ALL.map(EntryKind::name));
    }
}
