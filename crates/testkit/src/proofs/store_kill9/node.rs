//! The process that is killed: the production driver over SQLite, a loopback receiver that records what it accepted,
//! and a socket over which producers hand in messages.

use std::fs::{self, File, OpenOptions};
use std::io::{self, Write};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use futures_util::StreamExt;
use futures_util::stream::FuturesUnordered;
use posthaste_core::scheduler::{Limits, Order};
use posthaste_core::{Cause, Key, LaneSettings, MessageId, RowIndex, Tier, Verdict};
use posthaste_engine::clock::{Clock, SystemClock};
use posthaste_engine::dispatch::driver::DispatchHandle;
use posthaste_store::sqlite::Sqlite;
use posthaste_store::{Accepted, Message, Outbox, Session, StoreError};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{UnixListener, UnixStream};
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;

use super::producer::{acknowledgement, tokens};
use super::record::{self, TokenRecord};
use crate::fixtures::{Loopback, SeededTarget, part, put_endpoints, runtime, taken, with_delivery};
use crate::master_key;
use crate::prove::CannotRun;

/// The line printed once the node accepts messages.
pub(super) const READY: &str = "ready";
/// Attempts under way at once.
pub(super) const SLOTS: u32 = 256;
const LANES: u64 = 16;
/// How much faster than real time the clock runs, so that retries come within about a second.
const CLOCK: u32 = 60;
const ATTEMPT: Duration = Duration::from_millis(2);
/// One attempt in this many fails.
const FAILS: u64 = 20;
const BODY_BYTES: usize = 200;

/// When a message is acknowledged.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum AckMoment {
    /// Once the store has answered that it is durable.
    Committed,
    /// At once: the fault that the proof must detect.
    Early,
}

/// Runs until it is killed.
pub(crate) fn run(folder: &Path, promise: &str) -> Result<(), CannotRun> {
    let promise = match promise {
        "committed" => AckMoment::Committed,
        "early" => AckMoment::Early,
        _ => return Err(CannotRun(format!("unknown kind of acknowledgement: {promise}"))),
    };
    part::end_with_input();
    runtime()?.block_on(serve(folder, promise))
}

async fn serve(folder: &Path, promise: AckMoment) -> Result<(), CannotRun> {
    let store = Arc::new(Sqlite::open_folder(&folder.join("data"), master_key())?);
    let clock = SystemClock::scaled(CLOCK);
    let start = store.open(clock.now()).await?;
    let session = start.session;
    put_endpoints(&store, session, 0..LANES).await?;
    let arrivals = OpenOptions::new().append(true).create(true).open(record::arrivals(folder))?;
    let transport = Loopback::new(Arc::clone(&store), ATTEMPT, Box::new(receiver(arrivals)));
    let limits = Limits { slots: SLOTS, ..Limits::default() };
    let (driver, handle) = transport.drive(limits, start, clock.clone(), session.id);
    let lanes = (0..LANES).map(|n| Arc::new(SeededTarget(n).endpoint().lane_settings())).collect();
    let door = Arc::new(Door { store, session, handle, clock, lanes, promise, next: AtomicU64::new(1) });

    let socket = record::socket(folder);
    if socket.exists() {
        fs::remove_file(&socket)?;
    }
    let listener = UnixListener::bind(&socket)?;
    println!("{READY}");
    io::stdout().flush()?;
    let mut tasks = JoinSet::new();
    tasks.spawn(async { driver.run(CancellationToken::new()).await.map_err(CannotRun::from) });
    loop {
        tokio::select! {
            biased;
            Some(ended) = tasks.join_next() => match ended {
                // A producer has disconnected.
                Ok(Ok(())) => {}
                Ok(Err(error)) => return Err(error),
                Err(error) => return Err(CannotRun(error.to_string())),
            },
            Ok((stream, _)) = listener.accept() => {
                let door = Arc::clone(&door);
                tasks.spawn(async move { door.serve(stream).await; Ok(()) });
            }
        }
    }
}

/// A receiver that records each message and accepts it, and refuses one attempt in [`FAILS`].
fn receiver(mut arrivals: File) -> impl FnMut(&posthaste_engine::dispatch::SendAttempt, &Message) -> Verdict {
    let mut count = 0_u64;
    move |send, message| {
        count += 1;
        if count.is_multiple_of(FAILS) {
            return Verdict { status: Some(503), ..Verdict::of(Cause::Unavailable) };
        }
        let token = tokens(&message.body).next().unwrap_or(0);
        let record = TokenRecord { token, id: send.start.delivery.raw() };
        arrivals.write_all(&record.to_bytes()).expect("the file of arrivals can be written");
        taken()
    }
}

type ApiAnswer = [u8; record::BYTES];

/// Accepts messages from producers.
struct Door {
    store: Arc<Sqlite>,
    session: Session,
    handle: DispatchHandle,
    clock: SystemClock,
    lanes: Vec<Arc<LaneSettings>>,
    promise: AckMoment,
    next: AtomicU64,
}

impl Door {
    /// Serves one producer until it disconnects or the store stops.
    async fn serve(&self, stream: UnixStream) {
        let (mut input, mut output) = stream.into_split();
        let mut accepts = FuturesUnordered::new();
        let mut bytes = Vec::with_capacity(8 * 1_024);
        loop {
            let answers: Vec<u8> = tokio::select! {
                biased;
                Some(accepted) = accepts.next(), if !accepts.is_empty() => match accepted {
                    Ok(answer) if self.promise == AckMoment::Committed => Vec::from(answer),
                    Ok(_) => Vec::new(),
                    Err(_) => return,
                },
                read = input.read_buf(&mut bytes) => {
                    if !matches!(read, Ok(1..)) {
                        return;
                    }
                    let whole = bytes.len() / 8 * 8;
                    let messages: Vec<_> = tokens(&bytes[..whole]).map(|token| self.message(token)).collect();
                    bytes.drain(..whole);
                    let answers = messages.iter().flat_map(|(answer, _)| *answer).collect();
                    accepts.extend(messages.into_iter().map(|(answer, message)| self.accept(answer, message)));
                    if self.promise == AckMoment::Early { answers } else { Vec::new() }
                }
            };
            if output.write_all(&answers).await.is_err() {
                return;
            }
        }
    }

    async fn accept(&self, answer: ApiAnswer, message: Accepted) -> Result<ApiAnswer, StoreError> {
        self.store.accept(self.session, vec![message]).await.map(|_| answer)
    }

    fn message(&self, token: u64) -> (ApiAnswer, Accepted) {
        let number = self.next.fetch_add(1, Ordering::Relaxed);
        let id = MessageId(Key::new(self.session.writer, 2 * number));
        let lane = Arc::clone(&self.lanes[usize::try_from(number % LANES).expect("below the number of lanes")]);
        let now = self.clock.now();
        let place = RowIndex::for_new(Order::Fifo, self.handle.is_spilling(lane.lane, Tier::Promotional), now, now);
        let mut body = token.to_be_bytes().to_vec();
        body.resize(BODY_BYTES, b'x');
        let message = Message::new(id, lane.tenant, now, body);
        (acknowledgement(token, id.raw()), with_delivery(message, lane, place))
    }
}
