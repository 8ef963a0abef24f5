//! Compares the accepted messages with the results that the server reports and with the receivers' own logs.

use std::collections::BTreeMap;

use serde::Serialize;
use serde_json::Value;

use super::plan::ReceiverName;
use super::producer::AcceptedMessage;
use super::receiver::RequestLog;

/// The result of a message as the server reports it, from all of its deliveries, replays included.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum MessageResult {
    Delivered,
    Dead(String),
    Expired,
    Cancelled,
    Pending,
}

impl MessageResult {
    pub(super) fn read(message: &Value) -> Self {
        let deliveries = message["deliveries"].as_array().map(Vec::as_slice).unwrap_or_default();
        let in_state = |state: &str| deliveries.iter().rev().find(|one| one["state"] == state);
        if in_state("delivered").is_some() {
            return Self::Delivered;
        }
        let ends = ["dead", "expired", "cancelled"];
        if deliveries.is_empty() || deliveries.iter().any(|one| !ends.iter().any(|end| one["state"] == *end)) {
            return Self::Pending;
        }
        match (in_state("dead"), in_state("expired")) {
            (Some(dead), _) => Self::Dead(dead["cause"].as_str().unwrap_or("unknown").to_owned()),
            (None, Some(_)) => Self::Expired,
            (None, None) => Self::Cancelled,
        }
    }
}

/// The counts of the demo. The ledger closes if no message is lost or unfinished.
#[derive(Debug, Default, PartialEq, Serialize)]
pub(super) struct DemoLedger {
    /// Messages that were answered `202`.
    pub(super) accepted: usize,
    /// Accepted messages that a receiver took, by its own log.
    pub(super) delivered: usize,
    /// Accepted messages that the server reports as delivered.
    pub(super) delivered_by_server: usize,
    pub(super) expired: usize,
    pub(super) cancelled: usize,
    pub(super) dead: BTreeMap<String, usize>,
    /// Messages that the server reports as delivered and no receiver took.
    pub(super) lost: usize,
    /// Messages that had not ended when the demo did.
    pub(super) unfinished: usize,
    /// How often receivers took a message again.
    pub(super) duplicates: usize,
    /// Requests that receivers got.
    pub(super) attempts: usize,
    pub(super) attempts_per_message: f64,
    /// Requests without a valid signature.
    pub(super) forged: usize,
    /// Messages that a receiver took and the server never accepted.
    pub(super) unheard_of: usize,
}

impl DemoLedger {
    /// Makes the ledger. A message whose result was not read from the server counts as unfinished.
    pub(super) fn of<'a>(
        accepted: &[AcceptedMessage],
        results: &BTreeMap<String, MessageResult>,
        log: impl Fn(ReceiverName) -> &'a RequestLog,
    ) -> Self {
        let mut ledger = Self { accepted: accepted.len(), ..Self::default() };
        for message in accepted {
            let result = results.get(&message.id).unwrap_or(&MessageResult::Pending);
            let taken = log(message.who).times_taken(&message.id) > 0;
            ledger.delivered += usize::from(taken);
            ledger.delivered_by_server += usize::from(*result == MessageResult::Delivered);
            match result {
                _ if taken => {}
                MessageResult::Delivered => ledger.lost += 1,
                MessageResult::Pending => ledger.unfinished += 1,
                MessageResult::Expired => ledger.expired += 1,
                MessageResult::Cancelled => ledger.cancelled += 1,
                MessageResult::Dead(cause) => *ledger.dead.entry(cause.clone()).or_default() += 1,
            }
        }
        let logs = || ReceiverName::ALL.into_iter().map(&log);
        ledger.duplicates = logs().map(RequestLog::duplicates).sum();
        ledger.attempts = logs().map(RequestLog::requests).sum();
        ledger.attempts_per_message = ledger.attempts as f64 / ledger.accepted.max(1) as f64;
        ledger.forged = logs().map(|log| log.forged).sum();
        ledger.unheard_of = logs().map(RequestLog::taken).sum::<usize>() - ledger.delivered;
        ledger
    }

    /// Why the ledger does not close; empty if it does.
    pub(super) fn complaints(&self) -> Vec<String> {
        let counts = [
            (self.lost, "accepted messages are lost"),
            (self.unfinished, "accepted messages have not ended"),
            (self.forged, "requests had no valid signature"),
            (self.unheard_of, "messages arrived that were not accepted"),
        ];
        counts.iter().filter(|(count, _)| *count > 0).map(|(count, what)| format!("{count} {what}")).collect()
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use serde_json::json;

    use super::*;

    fn result(states: &[(&str, &str)]) -> MessageResult {
        let deliveries: Vec<Value> =
            states.iter().map(|(state, cause)| json!({"state": state, "cause": cause})).collect();
        MessageResult::read(&json!({ "deliveries": deliveries }))
    }

    #[test]
    fn a_message_s_result_counts_its_replays() {
        assert_eq!(result(&[("delivered", "")]), MessageResult::Delivered);
        assert_eq!(result(&[("dead", "not_found"), ("delivered", "")]), MessageResult::Delivered);
        assert_eq!(result(&[("dead", "not_found"), ("dispatching", "")]), MessageResult::Pending);
        assert_eq!(result(&[("dead", "not_found")]), MessageResult::Dead("not_found".to_owned()));
        assert_eq!(result(&[("expired", "")]), MessageResult::Expired);
        assert_eq!(result(&[("retry", "unknown")]), MessageResult::Pending);
        assert_eq!(result(&[]), MessageResult::Pending, "a message for one endpoint has a delivery");
    }

    fn accepted(ids: &[&str]) -> Vec<AcceptedMessage> {
        ids.iter()
            .map(|id| AcceptedMessage { who: ReceiverName::Shop, id: (*id).to_owned(), at: Duration::ZERO })
            .collect()
    }

    fn logs(taken: &[&str]) -> (RequestLog, RequestLog) {
        let mut shop = RequestLog::default();
        for id in taken {
            let entry = shop.arrived(Duration::ZERO);
            shop.answered(entry, id, 204);
        }
        (shop, RequestLog::default())
    }

    fn compared(taken: &[&str], results: &[(&str, MessageResult)]) -> DemoLedger {
        let (shop, others) = logs(taken);
        let results = results.iter().map(|(id, result)| ((*id).to_owned(), result.clone())).collect();
        DemoLedger::of(
            &accepted(&["a", "b", "c"]),
            &results,
            |who| if who == ReceiverName::Shop { &shop } else { &others },
        )
    }

    #[test]
    fn a_ledger_closes_when_every_message_was_delivered_or_has_ended() {
        let dead = MessageResult::Dead("endpoint_gone".to_owned());
        let ledger =
            compared(&["a", "a"], &[("a", MessageResult::Delivered), ("b", dead), ("c", MessageResult::Expired)]);
        assert!(ledger.complaints().is_empty(), "{ledger:?}");
        assert_eq!((ledger.delivered, ledger.duplicates, ledger.expired, ledger.attempts), (1, 1, 1, 2));
        assert_eq!(ledger.dead["endpoint_gone"], 1);
    }

    #[test]
    fn a_message_delivered_by_the_server_s_count_alone_is_lost() {
        let ledger = compared(&["a"], &[("a", MessageResult::Delivered), ("b", MessageResult::Delivered)]);
        assert_eq!((ledger.lost, ledger.unfinished, ledger.delivered_by_server), (1, 1, 2));
        assert_eq!(ledger.complaints(), ["1 accepted messages are lost", "1 accepted messages have not ended"]);
    }

    #[test]
    fn a_message_that_was_never_accepted_is_a_complaint() {
        let ledger = compared(
            &["a", "x"],
            &[("a", MessageResult::Delivered), ("b", MessageResult::Expired), ("c", MessageResult::Expired)],
        );
        assert_eq!(ledger.complaints(), ["1 messages arrived that were not accepted"]);
    }
}
