//! A job under way: it ends in exactly one [`Done`], even when its task does not live to say so.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use http::{HeaderMap, HeaderName, HeaderValue, Method, Version, header};
use posthaste_channels::{Request, webhook};
use posthaste_core::Cause;
use tokio::sync::mpsc::OwnedPermit;
use tokio::time::Instant;

use super::{Answer, Done, Fault, Identity, Job};
use crate::target::Target;

/// A job, its deadline and its place in the results.
#[derive(Debug)]
pub(super) struct Attempt {
    token: u64,
    target: Arc<Target>,
    identity: Option<Arc<Identity>>,
    request: Request,
    deadline: Instant,
    sent_at: Instant,
    /// Whether a connection gave it back already.
    repeated: bool,
    /// Reserved when the job was taken: a result never waits for room.
    reply: Option<OwnedPermit<Done>>,
}

impl Attempt {
    pub(super) fn new(job: Job, reply: OwnedPermit<Done>, now: Instant, timeout: Duration) -> Self {
        let Job { token, target, identity, request, deadline } = job;
        let deadline = deadline.min(now + timeout);
        Self { token, target, identity, request, deadline, sent_at: now, repeated: false, reply: Some(reply) }
    }

    pub(super) fn target(&self) -> &Arc<Target> {
        &self.target
    }

    pub(super) fn identity(&self) -> Option<&Arc<Identity>> {
        self.identity.as_ref()
    }

    pub(super) fn deadline(&self) -> Instant {
        self.deadline
    }

    pub(super) fn request(&self) -> &Request {
        &self.request
    }

    /// The same for HTTP/2, which frames the body itself.
    pub(super) fn http2_request(&self) -> (http::Request<()>, Bytes) {
        let Request { ours, own, body } = &self.request;
        let mut head = http::Request::new(());
        *head.method_mut() = Method::POST;
        *head.uri_mut() = self.target.url();
        *head.version_mut() = Version::HTTP_2;
        let headers = head.headers_mut();
        ours.iter().for_each(|field| put(headers, field, false));
        own.iter().for_each(|field| put(headers, field, true));
        headers.insert(header::CONTENT_LENGTH, body.len().into());
        (head, body.clone())
    }

    /// Whether a connection gave it back already.
    pub(super) fn is_repeated(&self) -> bool {
        self.repeated
    }

    /// It is given back, which happens to it once; `false` when it has happened before.
    pub(super) fn repeat(&mut self) -> bool {
        !std::mem::replace(&mut self.repeated, true)
    }

    pub(super) fn finish(mut self, result: Result<Answer, Fault>) {
        self.reply(result);
    }

    /// Undoes [`Attempt::new`]: nobody hears of it.
    pub(super) fn into_job(mut self) -> Job {
        self.reply = None;
        Job {
            token: self.token,
            target: Arc::clone(&self.target),
            identity: self.identity.take(),
            request: std::mem::take(&mut self.request),
            deadline: self.deadline,
        }
    }

    fn reply(&mut self, result: Result<Answer, Fault>) {
        if let Some(reply) = self.reply.take() {
            reply.send(Done { token: self.token, result, took: self.sent_at.elapsed() });
        }
    }
}

/// A value that is a secret is kept out of the tables that HTTP/2 compresses heads by.
fn put(headers: &mut HeaderMap, (name, value): (&str, &str), is_secret: bool) {
    let name = HeaderName::from_bytes(name.as_bytes()).expect("fields are made of names");
    let mut value = HeaderValue::from_str(value).expect("fields are printable ASCII");
    value.set_sensitive(is_secret || name == webhook::RECEIPT);
    headers.append(name, value);
}

impl Drop for Attempt {
    /// A panic or an aborted runtime: we cannot know how far it came.
    fn drop(&mut self) {
        self.reply(Err(Fault { cause: Cause::Unknown, detail: Some("connector_stopped") }));
    }
}
