//! One request and its answer over one stream of an HTTP/2 connection.
//!
//! The answer is bounded as over HTTP/1.1: the head, its interim answers, the body, the time. HTTP/2
//! defines which failed streams were not processed: a refused stream, and one above the last that a
//! receiver has seen when it sends `GOAWAY`.

use std::future::poll_fn;
use std::pin::Pin;
use std::task::{Context, Poll};

use bytes::Bytes;
use h2::RecvStream;
use h2::client::{ResponseFuture, SendRequest};
use http::Response;
use posthaste_core::Cause;
use tokio::time::{Instant, timeout_at};

use super::attempt::RunningAttempt;
use super::bounds::{BodyExcerpt, FIELDS_MAX, HEAD_BYTES_MAX, INTERIM_ANSWERS_MAX};
use super::protocol::Broke;
use super::{ConnectionFault, ReceivedResponse, fault};

pub(super) enum How {
    Answered(ReceivedResponse),
    /// Without one, and how the receiver broke it, if it did.
    Failed(ConnectionFault, Option<Broke>),
    /// Without an answer until its deadline, after it was sent.
    TimedOut,
    /// The receiver did not process it: it may be repeated.
    NotProcessed(ConnectionFault, Option<Broke>),
}

/// Sends a request and reads its answer until the attempt's deadline.
pub(super) async fn exchange(sender: SendRequest<Bytes>, attempt: RunningAttempt) -> (RunningAttempt, How) {
    let deadline = attempt.job.deadline;
    let how = match Instant::now() < deadline {
        true => talk(sender, &attempt, deadline).await,
        false => How::Failed(ConnectionFault::timeout(false), None),
    };
    (attempt, how)
}

async fn talk(mut sender: SendRequest<Bytes>, attempt: &RunningAttempt, deadline: Instant) -> How {
    let (head, body) = attempt.http2_request();
    let has_body = !body.is_empty();
    let (mut answer, mut stream) = match sender.send_request(head, !has_body) {
        Ok(begun) => begun,
        // The connection had ended or was about to: nothing was sent.
        Err(error) => return How::NotProcessed(fault::unsent_stream_fault(&error), None),
    };
    // The library keeps the body and sends as much at a time as flow control allows.
    if has_body && let Err(error) = stream.send_data(body, true) {
        return failed(&error);
    }
    let mut interim = 0;
    let head = poll_fn(|cx| poll_head(cx, &mut answer, &mut interim));
    match timeout_at(deadline, head).await {
        Ok(Head::Answered(response)) => read_answer(response, deadline).await,
        Ok(Head::Failed(error)) => failed(&error),
        Ok(Head::Flooded) => {
            How::Failed(ConnectionFault::new(Cause::ProtocolError, "interim_answers"), Some(Broke::Stream))
        }
        Err(_) => How::TimedOut,
    }
}

enum Head {
    Answered(Response<RecvStream>),
    Failed(h2::Error),
    Flooded,
}

fn poll_head(cx: &mut Context<'_>, answer: &mut ResponseFuture, interim: &mut usize) -> Poll<Head> {
    while let Poll::Ready(Some(Ok(_))) = answer.poll_informational(cx) {
        *interim += 1;
        if *interim > INTERIM_ANSWERS_MAX {
            return Poll::Ready(Head::Flooded);
        }
    }
    Pin::new(answer).poll(cx).map(|answered| match answered {
        Ok(response) => Head::Answered(response),
        Err(error) => Head::Failed(error),
    })
}

/// Reads the rest of an answer. The head counts even if the body fails; a body that is too long or too slow is cut.
async fn read_answer(response: Response<RecvStream>, deadline: Instant) -> How {
    let (head, mut body) = response.into_parts();
    if !(200..=599).contains(&head.status.as_u16()) {
        return How::Failed(ConnectionFault::new(Cause::ProtocolError, "status"), Some(Broke::Stream));
    }
    let bytes: usize = head.headers.iter().map(|(name, value)| name.as_str().len() + value.len() + 4).sum();
    if head.headers.len() > FIELDS_MAX || bytes > HEAD_BYTES_MAX {
        return How::Failed(ConnectionFault::plain(Cause::ResponseHeadTooLarge), None);
    }
    let mut kept = BodyExcerpt { wanted: !head.status.is_success(), ..BodyExcerpt::default() };
    let cut = match timeout_at(deadline, read_body(&mut body, &mut kept)).await {
        Ok(Ok(is_whole)) => !is_whole,
        Ok(Err(_)) | Err(_) => true,
    };
    How::Answered(ReceivedResponse { status: head.status, headers: head.headers, excerpt: kept.excerpt.freeze(), cut })
}

/// Reads a body; `true` if it was read to its end.
async fn read_body(body: &mut RecvStream, kept: &mut BodyExcerpt) -> Result<bool, h2::Error> {
    while let Some(data) = poll_fn(|cx| body.poll_data(cx)).await {
        let data = data?;
        let taken = kept.take(&data);
        body.flow_control().release_capacity(data.len())?;
        if taken.is_break() {
            return Ok(false);
        }
    }
    Ok(true)
}

fn failed(error: &h2::Error) -> How {
    match fault::stream_fault(error) {
        fault::StreamFault::NotProcessed(fault) => {
            let wants_http1 = error.reason() == Some(h2::Reason::HTTP_1_1_REQUIRED);
            How::NotProcessed(fault, wants_http1.then_some(Broke::WantsHttp1))
        }
        fault::StreamFault::Broken(fault) => How::Failed(fault, Some(Broke::Stream)),
        fault::StreamFault::Lost(fault) => How::Failed(fault, None),
    }
}
