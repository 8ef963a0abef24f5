//! Batches: many messages in one request, a line each. Every line has its own idempotency key and is accepted or
//! refused on its own; the answers have the order of the lines.

use posthaste_engine::accept::{AcceptOutcome, IdempotencyRequest, NewMessage, NotAccepted};
use posthaste_engine::tenants::{Allowance, Made, Tenant};

use super::body::{BODY_BYTES_MAX, lines};
use super::caller::SEND;
use super::idempotency::{key_of_line, stands_for};
use super::messages::{AcceptedView, answer};
use super::new_message::NewMessageBody;
use super::prelude::*;
use super::{NDJSON, new_message, quota, typed};
use crate::problem::RefusedLine;

/// The most messages in a request: all answers are held in memory until the last one is known.
const LINES_MAX: usize = 1_000;
/// The typical size of an answer to a line, for the buffer's capacity.
const ANSWER_BYTES: usize = 256;
/// The path that accepts batches.
pub(super) const PATH: &str = "/v1/messages/batch";

pub(crate) const OPERATIONS: &[Operation] = &[Operation::post(PATH, "Sends up to 1,000 messages, one JSON line each")
    .scope("send")
    .lines::<LineBody>()
    .limited()
    .returns_as::<LineView>(
        200,
        "One line for each message, in the order of the request. Each is accepted or refused on its own.",
        NDJSON,
    )];

body! {
    struct LineBody as "NewMessageLine" {
        message: all NewMessageBody,
        /// A second line with the same key and content within 24 hours gets the first one's answer, and creates
        /// nothing.
        idempotency_key: optional LineKey,
    }
}

kinds! {
    LineKey: String = key_of_line, as String;
}

/// The answer to a line.
#[derive(JsonSchema)]
#[schemars(untagged, inline)]
#[expect(
    dead_code,
    reason = "only documents answers: an accepted line is put together from bytes that are JSON already"
)]
enum LineView {
    Accepted(AcceptedLine),
    Refused(RefusedLine<'static>),
}

#[derive(JsonSchema)]
#[expect(dead_code, reason = "only documents answers")]
struct AcceptedLine {
    #[serde(flatten)]
    accepted: AcceptedView<'static>,
    /// Always 202.
    status: u16,
    /// The line of the request body that this answers, counted from 1.
    line: usize,
    /// true if the message was accepted before under the same key.
    #[serde(skip_serializing_if = "Option::is_none")]
    idempotency_replayed: Option<bool>,
}

pub async fn send<S: Store, C: Clock>(State(api): ApiRef<S, C>, caller: Caller<SEND>, request: Request) -> Answer {
    let tenant = caller.tenant()?;
    let body = lines(request).await?;
    let mut read = Vec::new();
    let lines = (1_usize..).zip(body.split(|byte| *byte == b'\n').map(<[u8]>::trim_ascii));
    for (number, line) in lines.filter(|(_, line)| !line.is_empty()) {
        if read.len() == LINES_MAX {
            let detail = format!("a batch has at most {LINES_MAX} lines; nothing was accepted; send it in parts");
            return Err(Problem::new(Code::BodyTooLarge, detail));
        }
        read.push((number, line));
    }
    if read.is_empty() {
        let detail = "the batch is empty; send one message a line";
        return Err(Problem::new(Code::InvalidBody, detail));
    }
    let mut new = Vec::with_capacity(read.len());
    let mut allowance = None;
    let mut answers: Vec<(usize, Option<Problem>)> = Vec::with_capacity(read.len());
    for (number, line) in read {
        let refused = match message(&api, tenant, line) {
            Ok((message, left)) => {
                new.push(message);
                allowance = left;
                None
            }
            Err(problem) => Some(problem),
        };
        answers.push((number, refused));
    }
    drop(body);
    let mut outcomes = api.engine.accept_all(new).await.into_iter();
    let mut written = Vec::with_capacity(answers.len() * ANSWER_BYTES);
    for (number, refused) in answers {
        // The outcomes have the order of the lines that were not refused.
        match refused {
            Some(problem) => problem.write_line(number, &mut written),
            None => outcomes.by_ref().take(1).for_each(|outcome| write(number, outcome, &mut written)),
        }
        written.push(b'\n');
    }
    let mut response = typed(NDJSON, written);
    quota::tell(&mut response, allowance);
    Ok(response)
}

fn message<S: Store, C: Clock>(
    api: &Api<S, C>,
    tenant: &Tenant,
    line: &[u8],
) -> Result<(NewMessage, Option<Allowance>)> {
    if line.len() > BODY_BYTES_MAX {
        return Err(Problem::new(Code::BodyTooLarge, format!("the line is larger than {BODY_BYTES_MAX} bytes")));
    }
    let mut fields = BodyObject::read(line)?;
    let LineBody { message, idempotency_key } = LineBody::read(&mut fields);
    let once = idempotency_key.map(|key| IdempotencyRequest { key, digest: stands_for(tenant.id, PATH, line), answer });
    let new = NewMessage { once, ..new_message::parse(api, tenant, message, fields)? };
    Ok((new, quota::take(api, tenant)?))
}

/// Writes the answer to a line: the answer that the message would get in a request of its own, with its status.
fn write(number: usize, outcome: Result<AcceptOutcome, NotAccepted>, line: &mut Vec<u8>) {
    let (first, replayed) = match outcome {
        Ok(Made::Now(promise)) => (answer(&promise), ""),
        Ok(Made::Before(first)) => (first, "\"idempotency_replayed\":true,"),
        Err(refusal) => return Problem::from(refusal).write_line(number, line),
    };
    // The answer is a JSON object: the line's fields are put in front of its own.
    let fields = first.body.strip_prefix(b"{").unwrap_or(&first.body);
    line.extend_from_slice(format!("{{\"status\":{},\"line\":{number},{replayed}", first.status).as_bytes());
    line.extend_from_slice(fields);
}
