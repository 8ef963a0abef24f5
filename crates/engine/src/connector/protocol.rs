//! Which HTTP version each receiver uses, as far as is known. Pure: events come in as arguments.
//!
//! This knowledge outlives connections, so that the next burst opens one connection and
//! not one for each attempt, and so that a receiver that breaks HTTP/2 gets HTTP/1.1 for a while.
//! Evicted entries are learnt again.

use std::collections::HashMap;
use std::time::Duration;

use posthaste_crypto::digest::Digest;
use tokio::time::Instant;

use crate::Origin;

/// How many attempts one HTTP/2 connection is expected to carry before its receiver has sent the limit.
pub(super) const STREAMS_EXPECTED: usize = 100;
/// After this many broken attempts in a row the receiver gets HTTP/1.1.
const BROKEN_MAX: u8 = 3;
/// How long such a receiver gets HTTP/1.1.
const HTTP1_FOR: Duration = Duration::from_secs(600);
/// The most receivers that are remembered. When one more comes, all are evicted.
const KNOWN_MAX: usize = 4_096;

#[derive(Debug, Default)]
pub(super) struct Protocols(HashMap<(Option<Digest>, Origin), Known>);

#[derive(Debug, Default)]
struct Known {
    /// How many attempts one connection carries; 0 while that is unknown.
    streams: usize,
    broken: u8,
    http1_until: Option<Instant>,
}

/// How a receiver broke an attempt over HTTP/2.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Broke {
    /// It reset the stream, refused it twice, or violated the protocol.
    Stream,
    /// It required HTTP/1.1.
    WantsHttp1,
}

impl Protocols {
    /// How many attempts a connection is expected to carry at once.
    pub(super) fn streams(&self, identity: Option<Digest>, origin: &Origin) -> usize {
        if self.0.is_empty() {
            return 1;
        }
        self.0.get(&(identity, origin.clone())).map_or(1, |known| known.streams.max(1))
    }

    /// Whether HTTP/2 may be offered.
    pub(super) fn may_multiplex(&self, identity: Option<Digest>, origin: &Origin, now: Instant) -> bool {
        let until = self.0.get(&(identity, origin.clone())).and_then(|known| known.http1_until);
        until.is_none_or(|until| until <= now)
    }

    /// A connection carries this many attempts at once.
    pub(super) fn learn(&mut self, identity: Option<Digest>, origin: &Origin, streams: usize) {
        let key = (identity, origin.clone());
        // A receiver that has only used HTTP/1.1 needs no entry.
        if streams > 1 || self.0.contains_key(&key) {
            self.known(key).streams = streams;
        }
    }

    /// Counts a broken attempt. Returns whether the receiver gets HTTP/1.1 from now on.
    pub(super) fn broke(&mut self, identity: Option<Digest>, origin: &Origin, how: Broke, now: Instant) -> bool {
        let known = self.known((identity, origin.clone()));
        known.broken = known.broken.saturating_add(1);
        let gets_http1 = known.broken >= BROKEN_MAX || how == Broke::WantsHttp1;
        if gets_http1 {
            *known = Known { http1_until: Some(now + HTTP1_FOR), ..Known::default() };
        }
        gets_http1
    }

    /// An attempt over HTTP/2 was answered.
    pub(super) fn works(&mut self, identity: Option<Digest>, origin: &Origin) {
        if let Some(known) = self.0.get_mut(&(identity, origin.clone())) {
            known.broken = 0;
        }
    }

    fn known(&mut self, key: (Option<Digest>, Origin)) -> &mut Known {
        if self.0.len() >= KNOWN_MAX && !self.0.contains_key(&key) {
            self.0.clear();
        }
        self.0.entry(key).or_default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Host, UrlScheme};

    fn origin(port: u16) -> Origin {
        Origin { scheme: UrlScheme::Https, host: Host::Name("hooks.example.com".to_owned()), port }
    }

    #[test]
    fn a_receiver_that_breaks_three_in_a_row_gets_http_1_for_ten_minutes() {
        let (mut protocols, now, one) = (Protocols::default(), Instant::now(), origin(443));
        protocols.learn(None, &one, 128);
        assert!(!protocols.broke(None, &one, Broke::Stream, now));
        assert!(!protocols.broke(None, &one, Broke::Stream, now));
        protocols.works(None, &one);
        assert!(!protocols.broke(None, &one, Broke::Stream, now));
        assert!(!protocols.broke(None, &one, Broke::Stream, now));
        assert_eq!(protocols.streams(None, &one), 128);
        assert!(protocols.broke(None, &one, Broke::Stream, now));
        assert_eq!(protocols.streams(None, &one), 1);
        assert!(!protocols.may_multiplex(None, &one, now + HTTP1_FOR - Duration::from_secs(1)));
        assert!(protocols.may_multiplex(None, &one, now + HTTP1_FOR));
        assert!(protocols.may_multiplex(None, &origin(8443), now));
        assert!(protocols.may_multiplex(Some([1; 32]), &one, now));
        assert!(protocols.broke(None, &origin(8443), Broke::WantsHttp1, now), "one request for HTTP/1.1 is enough");
    }

    #[test]
    fn known_receivers_are_bounded() {
        let mut protocols = Protocols::default();
        (0..=u16::MAX).for_each(|port| protocols.learn(None, &origin(port), 100));
        assert!(protocols.0.len() <= KNOWN_MAX);
        assert_eq!(protocols.streams(None, &origin(u16::MAX)), 100);
        (0..=u16::MAX).for_each(|port| protocols.learn(Some([1; 32]), &origin(port), 1));
        assert!(protocols.0.keys().all(|(identity, _)| identity.is_none()));
    }
}
