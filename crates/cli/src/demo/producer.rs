//! Sends the demo's messages, and records those that were answered `202`.

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use anyhow::{Context, Result, bail};
use hyper::StatusCode;
use serde_json::json;
use tokio::task::JoinSet;
use tokio::time::Instant;

use super::api::{ReconnectingClient, ServerAddress};
use super::plan::{DemoClock, ReceiverName, SCALE};
use super::receiver::DemoReceiver;

/// The number of connections, and so of messages that wait for their commit at once.
const CONNECTIONS: usize = 16;
/// The wait after `429` or `503`. Their `Retry-After`, in seconds, is too long for the demo.
const RETRY_AFTER: Duration = Duration::from_millis(100);

#[derive(Clone, Debug)]
pub(super) struct AcceptedMessage {
    pub(super) who: ReceiverName,
    pub(super) id: String,
    pub(super) at: Duration,
}

/// The state that all connections of the producer share.
#[derive(Debug)]
pub(super) struct ProducerState {
    clock: Arc<DemoClock>,
    server: ServerAddress,
    began: Instant,
    pause: Duration,
    endpoints: Vec<(ReceiverName, String)>,
    next: AtomicUsize,
    /// Whether the endpoint of `legacy` is gone; its messages then go to another.
    gone: AtomicBool,
    repeated: AtomicUsize,
    accepted: Mutex<Vec<AcceptedMessage>>,
}

impl ProducerState {
    pub(super) fn begin(
        clock: &Arc<DemoClock>,
        server: ServerAddress,
        receivers: &[DemoReceiver],
    ) -> (Arc<Self>, JoinSet<Result<()>>) {
        let plan = &clock.plan;
        let state = Arc::new(Self {
            clock: Arc::clone(clock),
            server,
            began: Instant::now(),
            pause: (plan.length / SCALE).div_f64(plan.messages as f64),
            endpoints: receivers.iter().map(|one| (one.who, one.endpoint.clone())).collect(),
            next: AtomicUsize::new(0),
            gone: AtomicBool::new(false),
            repeated: AtomicUsize::new(0),
            accepted: Mutex::default(),
        });
        let mut tasks = JoinSet::new();
        for _ in 0..CONNECTIONS {
            tasks.spawn(produce(Arc::clone(&state)));
        }
        (state, tasks)
    }

    pub(super) fn accepted(&self) -> MutexGuard<'_, Vec<AcceptedMessage>> {
        self.accepted.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Calls that had no answer and were repeated with the same idempotency key.
    pub(super) fn repeated(&self) -> usize {
        self.repeated.load(Ordering::Relaxed)
    }

    fn recipient(&self, number: usize) -> (ReceiverName, &str) {
        let who = match ReceiverName::for_message(number) {
            ReceiverName::Legacy if self.gone.load(Ordering::Relaxed) => ReceiverName::Shop,
            who => who,
        };
        let endpoint = self.endpoints.iter().find(|(known, _)| *known == who);
        (who, endpoint.map_or("", |(_, id)| id))
    }
}

async fn produce(state: Arc<ProducerState>) -> Result<()> {
    let mut client = ReconnectingClient::new(state.server.clone());
    loop {
        let number = state.next.fetch_add(1, Ordering::Relaxed);
        if number >= state.clock.plan.messages {
            return Ok(());
        }
        let turn = u32::try_from(number).unwrap_or(u32::MAX);
        tokio::time::sleep_until(state.began + state.pause * turn).await;
        send(&state, &mut client, number).await.with_context(|| format!("message {number}"))?;
        state.repeated.fetch_add(std::mem::take(&mut client.repeated), Ordering::Relaxed);
    }
}

async fn send(state: &ProducerState, client: &mut ReconnectingClient, number: usize) -> Result<()> {
    loop {
        let (who, endpoint) = state.recipient(number);
        let body = json!({
            "event_type": format!("{}.demo", who.name()),
            "payload": { "number": number },
            "to": { "endpoints": [endpoint] },
        });
        let answer = client.post_once("/v1/messages", &format!("{}-{number}", who.name()), &body).await?;
        match answer.status {
            StatusCode::ACCEPTED => {
                let id = answer.text("id").context("the answer has no id")?.to_owned();
                state.accepted().push(AcceptedMessage { who, id, at: state.clock.now() });
                return Ok(());
            }
            StatusCode::TOO_MANY_REQUESTS | StatusCode::SERVICE_UNAVAILABLE => tokio::time::sleep(RETRY_AFTER).await,
            status if who == ReceiverName::Legacy && status.is_client_error() => {
                state.gone.store(true, Ordering::Relaxed);
            }
            status => bail!("it was answered {status}: {}", answer.body),
        }
    }
}
