//! Compares the accepted messages with the results that the server reports and with the receivers' own logs.

use std::collections::BTreeMap;

use serde::Serialize;
use serde_json::Value;

use super::log::Log;
use super::plan::Who;
use super::producer::Promise;

/// The result of a message as the server reports it, from all of its deliveries, replays included.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Word {
    Delivered,
    Dead(String),
    Expired,
    Cancelled,
    /// It has not ended.
    Pending,
}

impl Word {
    /// Reads the result from an answer of `GET /v1/messages/{id}`.
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
pub(super) struct Ledger {
    /// Messages that were answered `202`.
    pub(super) accepted: usize,
    /// Accepted messages that a receiver took, by its own log.
    pub(super) delivered: usize,
    /// Accepted messages that the server reports as delivered.
    pub(super) delivered_by_server: usize,
    pub(super) expired: usize,
    pub(super) cancelled: usize,
    /// Dead messages by cause.
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

impl Ledger {
    /// Makes the ledger. A message whose result was not read from the server counts as unfinished.
    pub(super) fn of<'a>(promised: &[Promise], words: &BTreeMap<String, Word>, log: impl Fn(Who) -> &'a Log) -> Self {
        let mut ledger = Self { accepted: promised.len(), ..Self::default() };
        for promise in promised {
            let word = words.get(&promise.id).unwrap_or(&Word::Pending);
            let taken = log(promise.who).times_taken(&promise.id) > 0;
            ledger.delivered += usize::from(taken);
            ledger.delivered_by_server += usize::from(*word == Word::Delivered);
            match word {
                _ if taken => {}
                Word::Delivered => ledger.lost += 1,
                Word::Pending => ledger.unfinished += 1,
                Word::Expired => ledger.expired += 1,
                Word::Cancelled => ledger.cancelled += 1,
                Word::Dead(cause) => *ledger.dead.entry(cause.clone()).or_default() += 1,
            }
        }
        let logs = || Who::ALL.into_iter().map(&log);
        ledger.duplicates = logs().map(Log::duplicates).sum();
        ledger.attempts = logs().map(Log::requests).sum();
        ledger.attempts_per_message = ledger.attempts as f64 / ledger.accepted.max(1) as f64;
        ledger.forged = logs().map(|log| log.forged).sum();
        ledger.unheard_of = logs().map(Log::taken).sum::<usize>() - ledger.delivered;
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

    fn word(states: &[(&str, &str)]) -> Word {
        let deliveries: Vec<Value> =
            states.iter().map(|(state, cause)| json!({"state": state, "cause": cause})).collect();
        Word::read(&json!({ "deliveries": deliveries }))
    }

    #[test]
    fn a_message_s_result_counts_its_replays() {
        assert_eq!(word(&[("delivered", "")]), Word::Delivered);
        assert_eq!(word(&[("dead", "not_found"), ("delivered", "")]), Word::Delivered);
        assert_eq!(word(&[("dead", "not_found"), ("dispatching", "")]), Word::Pending);
        assert_eq!(word(&[("dead", "not_found")]), Word::Dead("not_found".to_owned()));
        assert_eq!(word(&[("expired", "")]), Word::Expired);
        assert_eq!(word(&[("retry", "unknown")]), Word::Pending);
        assert_eq!(word(&[]), Word::Pending, "a message for one endpoint has a delivery");
    }

    fn promised(ids: &[&str]) -> Vec<Promise> {
        ids.iter().map(|id| Promise { who: Who::Shop, id: (*id).to_owned(), at: Duration::ZERO }).collect()
    }

    fn logs(taken: &[&str]) -> (Log, Log) {
        let mut shop = Log::default();
        for id in taken {
            let entry = shop.arrived(Duration::ZERO);
            shop.answered(entry, id, 204);
        }
        (shop, Log::default())
    }

    fn compared(taken: &[&str], words: &[(&str, Word)]) -> Ledger {
        let (shop, others) = logs(taken);
        let words = words.iter().map(|(id, word)| ((*id).to_owned(), word.clone())).collect();
        Ledger::of(&promised(&["a", "b", "c"]), &words, |who| if who == Who::Shop { &shop } else { &others })
    }

    #[test]
    fn a_ledger_closes_when_every_message_was_delivered_or_has_ended() {
        let dead = Word::Dead("endpoint_gone".to_owned());
        let ledger = compared(&["a", "a"], &[("a", Word::Delivered), ("b", dead), ("c", Word::Expired)]);
        assert!(ledger.complaints().is_empty(), "{ledger:?}");
        assert_eq!((ledger.delivered, ledger.duplicates, ledger.expired, ledger.attempts), (1, 1, 1, 2));
        assert_eq!(ledger.dead["endpoint_gone"], 1);
    }

    #[test]
    fn a_message_delivered_by_the_server_s_count_alone_is_lost() {
        let ledger = compared(&["a"], &[("a", Word::Delivered), ("b", Word::Delivered)]);
        assert_eq!((ledger.lost, ledger.unfinished, ledger.delivered_by_server), (1, 1, 2));
        assert_eq!(ledger.complaints(), ["1 accepted messages are lost", "1 accepted messages have not ended"]);
    }

    #[test]
    fn a_message_that_was_never_accepted_is_a_complaint() {
        let ledger = compared(&["a", "x"], &[("a", Word::Delivered), ("b", Word::Expired), ("c", Word::Expired)]);
        assert_eq!(ledger.complaints(), ["1 messages arrived that were not accepted"]);
    }
}
