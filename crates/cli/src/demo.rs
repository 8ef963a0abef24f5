//! `posthaste demo`: a server over a real file, receivers on real sockets that fail as receivers
//! do, and messages that arrive all the same. Nothing is left behind.

mod ledger;
mod show;

use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use hyper::{Method, StatusCode};
use posthaste_crypto::signature::Secret;
use posthaste_engine::clock::SystemClock;
use posthaste_server::api::caller::Door;
use posthaste_server::run::{Front, RunError};
use posthaste_store::sqlite::Sqlite;
use posthaste_testkit::caller::call;
use posthaste_testkit::receiver::{Behaviour, Receiver};
use tokio::net::TcpListener;
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;

use crate::config::Config;
use crate::say::say;
use crate::serve::{allow_this_machine, open, runtime, served};
use crate::simulate;
use ledger::Ledger;
use show::Screen;

/// A minute of backoff takes a second: nobody watches a demo for an hour.
const SCALE: u32 = 60;
const MESSAGES: usize = 200;
/// Slow enough to be seen, fast enough to be over soon.
const PACE: Duration = Duration::from_millis(20);
/// The last retry is due 40 s of the scaled clock after its message.
const ARRIVED_WITHIN: Duration = Duration::from_secs(10);
const LOOK_AGAIN: Duration = Duration::from_millis(100);

#[derive(clap::Args)]
pub(crate) struct Args {}

/// A receiver of the demo.
pub(crate) struct Cast {
    name: &'static str,
    event_type: &'static str,
    does: &'static str,
    receiver: Receiver,
}

pub(crate) fn run(_args: &Args) -> Result<()> {
    // Dropped at the end of this function, and with it the data, however the demo ends.
    let folder = tempfile::tempdir().context("cannot make a folder for the data")?;
    let mut config = Config::in_folder(folder.path().join("data"))?;
    allow_this_machine(&mut config.targets);
    runtime()?.block_on(async {
        tokio::select! {
            biased;
            _ = tokio::signal::ctrl_c() => {
                say!("\nstopped; nothing was left behind")
            }
            ended = play(config) => ended,
        }
    })
}

async fn play(config: Config) -> Result<()> {
    let clock = SystemClock::scaled(SCALE);
    let listener = TcpListener::bind("127.0.0.1:0").await.context("cannot listen on this machine")?;
    let server = listener.local_addr()?;
    let store = Arc::new(open(&config)?);
    let stop = CancellationToken::new();
    let mut services = JoinSet::new();
    services.spawn(serve(Arc::clone(&store), clock.clone(), config, listener, stop.clone()));

    let cast = cast(server, &clock).await?;
    let mut screen = Screen::open(server, SCALE, MESSAGES, &cast)?;
    let mut accepted = Vec::new();
    for number in 0..MESSAGES {
        accepted.push(send(server, &cast[number % cast.len()], number).await?);
        screen.show(accepted.len(), &cast)?;
        tokio::time::sleep(PACE).await;
    }
    let arrived = async {
        while !Ledger::of(&accepted, &cast).is_complete() {
            tokio::time::sleep(LOOK_AGAIN).await;
            screen.show(accepted.len(), &cast)?;
        }
        Ok(())
    };
    // What is missing after this time is in the ledger, which says so.
    tokio::time::timeout(ARRIVED_WITHIN, arrived).await.unwrap_or(Ok::<_, anyhow::Error>(()))?;

    let states = delivered_by_the_api(server, &cast).await?;
    stop.cancel();
    let ended = services.join_next().await.context("the server's task is there until it ends")?;
    ended?.context("the server ended badly")?;
    store.close().await;
    let ledger = Ledger::of(&accepted, &cast);
    screen.close(&ledger, states)?;
    let picture = tokio::task::spawn_blocking(simulate::short_outage).await.context("the simulation panicked")??;
    Screen::outage(&picture)?;
    ensure!(ledger.lost() == 0, "{} accepted messages did not arrive", ledger.lost());
    ensure!(states == accepted.len(), "the API calls {states} of {} deliveries delivered", accepted.len());
    Ok(())
}

async fn serve(
    store: Arc<Sqlite>,
    clock: SystemClock,
    config: Config,
    listener: TcpListener,
    stop: CancellationToken,
) -> Result<(), RunError> {
    served(&store, clock, &config, Front { listener, door: Door::Open, data: None }, stop).await
}

/// Starts the receivers and tells the server of them.
async fn cast(server: SocketAddr, clock: &SystemClock) -> Result<Vec<Cast>> {
    let fails = Behaviour::FailsFirst { times: 12, status: StatusCode::INTERNAL_SERVER_ERROR };
    let parts = [
        ("shop", "order.paid", "takes everything", Behaviour::Healthy),
        ("billing", "invoice.sent", "is down at first: its breaker opens, one message at a time asks again", fails),
        (
            "crm",
            "customer.joined",
            "answers 429 and Retry-After: 30 at first",
            Behaviour::Throttles { retry_after_seconds: 30 },
        ),
    ];
    let mut cast = Vec::new();
    for (name, event_type, does, behaviour) in parts {
        let secret = Secret::generate();
        let written = secret.reveal();
        let receiver = Receiver::start(behaviour, secret, clock.clone()).await?;
        let body = format!(
            "{{\"url\":\"{}\",\"event_types\":[\"{event_type}\"],\"signing\":{{\"secret\":\"{}\"}}}}",
            receiver.url(),
            written.as_str()
        );
        let made = call(server, Method::POST, "/v1/endpoints", &body).await?;
        ensure!(made.status == StatusCode::CREATED, "no endpoint was made: {}", made.body);
        cast.push(Cast { name, event_type, does, receiver });
    }
    Ok(cast)
}

/// Sends one message and gives its id: the server's promise.
async fn send(server: SocketAddr, to: &Cast, number: usize) -> Result<String> {
    let body = format!("{{\"event_type\":\"{}\",\"payload\":{{\"number\":{number}}}}}", to.event_type);
    let answer = call(server, Method::POST, "/v1/messages", &body).await?;
    ensure!(answer.status == StatusCode::ACCEPTED, "message {number} was not accepted: {}", answer.body);
    Ok(answer.text("id").context("the answer has no id")?.to_owned())
}

/// How many deliveries the API calls delivered, asked one by one.
async fn delivered_by_the_api(server: SocketAddr, cast: &[Cast]) -> io::Result<usize> {
    let mut delivered = 0;
    let taken = cast.iter().flat_map(|one| one.receiver.arrivals()).filter(|arrival| arrival.answered.is_success());
    for arrival in taken {
        // The receiver has it a moment before its outcome is durable.
        for _ in 0..20 {
            let answer = call(server, Method::GET, &format!("/v1/deliveries/{}", arrival.delivery), "").await?;
            if answer.text("state") == Some("delivered") {
                delivered += 1;
                break;
            }
            tokio::time::sleep(LOOK_AGAIN).await;
        }
    }
    Ok(delivered)
}
