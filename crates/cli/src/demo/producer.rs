//! Sends the demo's messages, and records those that were answered `202`.

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use anyhow::{Context, Result, bail};
use hyper::StatusCode;
use serde_json::json;
use tokio::task::JoinSet;
use tokio::time::Instant;

use super::api::{Client, Where};
use super::plan::{SCALE, Who};
use super::receiver::Receiver;
use super::story::Story;

/// The number of connections, and so of messages that wait for their commit at once.
const CONNECTIONS: usize = 16;
/// The wait after `429` or `503`. Their `Retry-After`, in seconds, is too long for the demo.
const PATIENCE: Duration = Duration::from_millis(100);

/// A message that the server has accepted.
#[derive(Clone, Debug)]
pub(super) struct Promise {
    pub(super) who: Who,
    pub(super) id: String,
    /// When it was accepted.
    pub(super) at: Duration,
}

/// The state that all connections of the producer share.
#[derive(Debug)]
pub(super) struct Desk {
    story: Arc<Story>,
    server: Where,
    began: Instant,
    /// The time from one message to the next.
    pause: Duration,
    messages: usize,
    endpoints: Vec<(Who, String)>,
    next: AtomicUsize,
    /// Whether the endpoint of `legacy` is gone; its messages then go to another.
    gone: AtomicBool,
    repeated: AtomicUsize,
    promised: Mutex<Vec<Promise>>,
}

impl Desk {
    /// Begins to send. Each task ends when all messages are sent.
    pub(super) fn begin(story: &Arc<Story>, server: Where, cast: &[Receiver]) -> (Arc<Self>, JoinSet<Result<()>>) {
        let plan = &story.plan;
        let desk = Arc::new(Self {
            story: Arc::clone(story),
            server,
            began: Instant::now(),
            pause: (plan.length / SCALE).div_f64(plan.messages as f64),
            messages: plan.messages,
            endpoints: cast.iter().map(|one| (one.who, one.endpoint.clone())).collect(),
            next: AtomicUsize::new(0),
            gone: AtomicBool::new(false),
            repeated: AtomicUsize::new(0),
            promised: Mutex::default(),
        });
        let mut tasks = JoinSet::new();
        for _ in 0..CONNECTIONS {
            tasks.spawn(produce(Arc::clone(&desk)));
        }
        (desk, tasks)
    }

    pub(super) fn promised(&self) -> MutexGuard<'_, Vec<Promise>> {
        self.promised.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Calls that had no answer and were repeated with the same idempotency key.
    pub(super) fn repeated(&self) -> usize {
        self.repeated.load(Ordering::Relaxed)
    }

    fn recipient(&self, number: usize) -> (Who, &str) {
        let who = match Who::for_message(number) {
            Who::Legacy if self.gone.load(Ordering::Relaxed) => Who::Shop,
            who => who,
        };
        let endpoint = self.endpoints.iter().find(|(known, _)| *known == who);
        (who, endpoint.map_or("", |(_, id)| id))
    }
}

async fn produce(desk: Arc<Desk>) -> Result<()> {
    let mut client = Client::new(desk.server.clone());
    loop {
        let number = desk.next.fetch_add(1, Ordering::Relaxed);
        if number >= desk.messages {
            return Ok(());
        }
        let turn = u32::try_from(number).unwrap_or(u32::MAX);
        tokio::time::sleep_until(desk.began + desk.pause * turn).await;
        send(&desk, &mut client, number).await.with_context(|| format!("message {number}"))?;
        desk.repeated.fetch_add(std::mem::take(&mut client.repeated), Ordering::Relaxed);
    }
}

/// Sends one message until it is accepted.
async fn send(desk: &Desk, client: &mut Client, number: usize) -> Result<()> {
    loop {
        let (who, endpoint) = desk.recipient(number);
        let body = json!({
            "event_type": format!("{}.demo", who.name()),
            "payload": { "number": number },
            "to": { "endpoints": [endpoint] },
        });
        let answer = client.post_once("/v1/messages", &format!("{}-{number}", who.name()), &body).await?;
        match answer.status {
            StatusCode::ACCEPTED => {
                let id = answer.text("id").context("the answer has no id")?.to_owned();
                desk.promised().push(Promise { who, id, at: desk.story.now() });
                return Ok(());
            }
            StatusCode::TOO_MANY_REQUESTS | StatusCode::SERVICE_UNAVAILABLE => tokio::time::sleep(PATIENCE).await,
            status if who == Who::Legacy && status.is_client_error() => desk.gone.store(true, Ordering::Relaxed),
            status => bail!("it was answered {status}: {}", answer.body),
        }
    }
}
