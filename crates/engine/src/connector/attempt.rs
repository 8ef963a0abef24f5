//! A job under way: it ends in exactly one [`Done`], even when its task panics or is aborted.

use std::time::Duration;

use bytes::Bytes;
use http::{HeaderMap, HeaderName, HeaderValue, Method, Version, header};
use posthaste_channels::{ChannelRequest, webhook};
use posthaste_core::Cause;
use tokio::sync::mpsc::OwnedPermit;
use tokio::time::Instant;

use super::{ConnectionFault, ConnectorJob, Done, ReceivedResponse};

/// A job, its deadline and its reserved place in the channel of results.
#[derive(Debug)]
pub(super) struct RunningAttempt {
    /// Its deadline is that of the settings if that one comes first.
    pub(super) job: ConnectorJob,
    sent_at: Instant,
    /// Whether a connection has handed it back before.
    pub(super) repeated: bool,
    /// Reserved when the job was taken, so that the result never waits for room.
    reply: Option<OwnedPermit<Done>>,
}

impl RunningAttempt {
    pub(super) fn new(mut job: ConnectorJob, reply: OwnedPermit<Done>, now: Instant, timeout: Duration) -> Self {
        job.deadline = job.deadline.min(now + timeout);
        Self { job, sent_at: now, repeated: false, reply: Some(reply) }
    }

    /// The request's head and body for HTTP/2, which frames the body itself.
    pub(super) fn http2_request(&self) -> (http::Request<()>, Bytes) {
        let ChannelRequest { ours, own, body } = &self.job.request;
        let mut head = http::Request::new(());
        *head.method_mut() = Method::POST;
        *head.uri_mut() = self.job.target.url.clone();
        *head.version_mut() = Version::HTTP_2;
        let headers = head.headers_mut();
        ours.iter().for_each(|field| put(headers, field, false));
        own.iter().for_each(|field| put(headers, field, true));
        headers.insert(header::CONTENT_LENGTH, body.len().into());
        (head, body.clone())
    }

    /// Marks it as handed back; `false` if it was before.
    pub(super) fn repeat(&mut self) -> bool {
        !std::mem::replace(&mut self.repeated, true)
    }

    pub(super) fn finish(mut self, result: Result<ReceivedResponse, ConnectionFault>) {
        self.reply(result);
    }

    /// Undoes [`RunningAttempt::new`]: the job ends without a result.
    pub(super) fn withdraw(mut self) {
        self.reply = None;
    }

    fn reply(&mut self, result: Result<ReceivedResponse, ConnectionFault>) {
        if let Some(reply) = self.reply.take() {
            reply.send(Done { token: self.job.token, result, took: self.sent_at.elapsed() });
        }
    }
}

/// Adds a header. HTTP/2 keeps the value of a secret one out of its compression tables.
fn put(headers: &mut HeaderMap, (name, value): (&str, &str), is_secret: bool) {
    let name = HeaderName::from_bytes(name.as_bytes()).expect("fields are made of names");
    let mut value = HeaderValue::from_str(value).expect("fields are printable ASCII");
    value.set_sensitive(is_secret || name == webhook::RECEIPT);
    headers.append(name, value);
}

impl Drop for RunningAttempt {
    /// After a panic or an aborted task it is not known how much of the request was sent.
    fn drop(&mut self) {
        self.reply(Err(ConnectionFault { cause: Cause::Unknown, detail: Some("connector_stopped") }));
    }
}
