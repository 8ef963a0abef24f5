//! A job under way: it ends in exactly one [`Done`], even when its task does not live to say so.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use http::{HeaderName, Request, Version, header};
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
    request: Request<Bytes>,
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

    /// The request; its path and host are the target's, whatever it says.
    pub(super) fn request(&self) -> &Request<Bytes> {
        &self.request
    }

    /// The same for HTTP/2, which frames the body itself.
    pub(super) fn http2_request(&self) -> (Request<()>, Bytes) {
        let body = self.request.body().clone();
        let mut head = Request::new(());
        *head.method_mut() = self.request.method().clone();
        *head.uri_mut() = self.target.url();
        *head.version_mut() = Version::HTTP_2;
        *head.headers_mut() = self.request.headers().clone();
        let headers = head.headers_mut();
        CONNECTION_FIELDS.iter().for_each(|name| drop(headers.remove(name)));
        headers.insert(header::CONTENT_LENGTH, body.len().into());
        (head, body)
    }

    /// Whether a connection gave it back already.
    pub(super) fn is_repeated(&self) -> bool {
        self.repeated
    }

    /// It is given back, which happens to it once; `false` when it has happened before.
    pub(super) fn repeat(&mut self) -> bool {
        !std::mem::replace(&mut self.repeated, true)
    }

    pub(super) fn finish(mut self: Box<Self>, result: Result<Answer, Fault>) {
        self.reply(result);
    }

    /// Undoes [`Attempt::new`]: nobody hears of it.
    pub(super) fn into_job(mut self: Box<Self>) -> Job {
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

/// Fields of HTTP/1.1 that HTTP/2 has other words for.
const CONNECTION_FIELDS: [HeaderName; 6] = [
    header::HOST,
    header::CONNECTION,
    header::TRANSFER_ENCODING,
    header::UPGRADE,
    HeaderName::from_static("keep-alive"),
    HeaderName::from_static("proxy-connection"),
];

impl Drop for Attempt {
    /// A panic or an aborted runtime: we cannot know how far it came.
    fn drop(&mut self) {
        self.reply(Err(Fault { cause: Cause::Unknown, detail: Some("connector_stopped") }));
    }
}
