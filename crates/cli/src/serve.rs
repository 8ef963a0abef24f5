//! `posthaste serve`: reads the settings, opens the store and runs the server until it is stopped by a signal.

use std::io::IsTerminal;
use std::sync::Arc;

use anyhow::{Context, Result, bail, ensure};
use posthaste_core::scheduler::Limits;
use posthaste_crypto::master::KeyCheck;
use posthaste_crypto::public_id::IdKey;
use posthaste_engine::clock::{Clock, SystemClock};
use posthaste_engine::connector::{self, Roots};
use posthaste_engine::engine::Settings;
use posthaste_engine::master_key;
use posthaste_engine::master_key::keeper::Keeper;
use posthaste_engine::target::TargetRules;
use posthaste_server::api::caller::Door;
use posthaste_server::run::{Front, RunError, STOP_WITHIN};
use posthaste_store::sqlite::{Bounds, Sqlite};
use tokio::net::TcpListener;
use tokio::runtime::{Builder, Runtime};
use tokio::signal::unix::{SignalKind, signal};
use tokio_util::sync::CancellationToken;
use tracing_subscriber::filter::{LevelFilter, Targets};
use tracing_subscriber::prelude::*;

use crate::config::{Config, Flags, LogFormat, RootsFrom};

#[derive(clap::Args)]
pub(crate) struct Args {
    #[command(flatten)]
    flags: Flags,
    /// For development on this machine: callers need no keys, and http and loopback targets are allowed
    #[arg(long)]
    dev: bool,
}

pub(crate) fn run(args: &Args) -> Result<()> {
    let mut config = Config::load(&args.flags)?;
    let door = if args.dev { Door::Open } else { Door::Locked };
    if args.dev {
        ensure!(
            config.listen.ip().is_loopback(),
            "--dev needs no keys, so it can listen on a loopback address only; use 127.0.0.1:{} instead of {}",
            config.listen.port(),
            config.listen
        );
        allow_this_machine(&mut config.targets);
    }
    log_to_stderr(config.log.clone(), config.log_format);
    let ended = runtime()?.block_on(serve(config, door, SystemClock::new()));
    ended.context("the server ended")
}

/// Allows http and receivers on this machine, for `--dev`.
pub(crate) fn allow_this_machine(targets: &mut TargetRules) {
    targets.allow_http = true;
    for loopback in ["127.0.0.0/8", "::1/128"] {
        targets.allow_networks.push(loopback.parse().expect("a network in its usual notation"));
    }
}

/// A runtime of one thread: waking another thread costs more than it gains here (`posthaste bench` shows it), and the
/// store writes in a thread of its own.
pub(crate) fn runtime() -> Result<Runtime> {
    Builder::new_current_thread().enable_all().build().context("cannot start the runtime")
}

/// Libraries that log URLs, headers and secrets at debug and trace level (L7). They are limited to info.
const TALKATIVE: [&str; 3] = ["h2", "hyper", "hyper_util"];

pub(crate) fn log_to_stderr(filter: Targets, format: LogFormat) {
    let filter = filter.with_targets(TALKATIVE.map(|library| (library, LevelFilter::INFO)));
    let lines = tracing_subscriber::fmt::layer().with_writer(std::io::stderr);
    let lines = match format {
        LogFormat::Text => lines.with_ansi(std::io::stderr().is_terminal()).boxed(),
        LogFormat::Json => lines.json().flatten_event(true).boxed(),
    };
    tracing_subscriber::registry().with(lines.with_filter(filter)).init();
}

/// Opens the store in its data folder, with the master key that it needs.
pub(crate) fn open(config: &Config) -> Result<Sqlite> {
    let ask = |needed: &[KeyCheck]| {
        let masters = master_key::load(&config.master_key, &config.data, needed).map_err(|why| why.to_string())?;
        tracing::info!(master_key = %masters.newest().id(), from = %config.master_key, "loaded the master key");
        Ok(masters)
    };
    let bounds = Bounds { retry_token_ttl: config.retry_token_ttl, ..Bounds::default() };
    Ok(Sqlite::open_asking(&config.data, bounds, ask)?)
}

/// Serves until SIGINT or SIGTERM, for `serve`, and with another clock for `demo`.
pub(crate) async fn serve<C: Clock>(config: Config, door: Door, clock: C) -> Result<()> {
    let stop = CancellationToken::new();
    let listener = TcpListener::bind(config.listen)
        .await
        .with_context(|| format!("cannot listen on {}; is another server using it?", config.listen))?;
    let address = listener.local_addr()?;
    let metrics = match config.metrics_listen {
        Some(own) => {
            let bound = TcpListener::bind(own).await;
            Some(bound.with_context(|| format!("cannot listen on {own} for metrics; is another server using it?"))?)
        }
        None => None,
    };
    let store = Arc::new(open(&config)?);
    let metrics_note = match &metrics {
        Some(own) => format!(", metrics on http://{}/metrics", own.local_addr()?),
        None => String::new(),
    };
    println!("posthaste: listening on http://{address}, data in {}{metrics_note}", config.data.display());
    let front = Front { listener, metrics, door, data: Some(config.data.clone()) };
    let server = served(&store, clock, &config, front, stop.clone());
    let ended = tokio::select! {
        biased;
        ended = server => ended,
        failed = stop_on_signals(&stop) => match failed {
            Ok(never) => match never {},
            Err(error) => return Err(error),
        },
    };
    store.close().await;
    if let Some(reason) = store.stopped() {
        ended.with_context(|| format!("the store stopped: {reason}"))?;
        bail!("the store stopped during shutdown: {reason}");
    }
    Ok(ended?)
}

/// Runs a server over a store; also for a part of `bench`.
pub(crate) async fn served<C: Clock>(
    store: &Arc<Sqlite>,
    clock: C,
    config: &Config,
    front: Front,
    stop: CancellationToken,
) -> Result<(), RunError> {
    let settings = Settings {
        limits: Limits { slots: config.slots, ..Limits::default() },
        connector: connector::Settings {
            rules: config.targets.clone(),
            attempt_timeout: config.attempt_timeout,
            ..connector::Settings::default()
        },
        roots: roots(&config.roots),
        seed: u64::from_le_bytes(posthaste_crypto::random::bytes()),
        master_key: Some(Keeper::new(&config.master_key, &config.data)),
        retention: config.retention,
        defaults: config.defaults.clone(),
        ..Settings::new(IdKey::from_bytes(store.id_key()), store.lookups(), store.api_keys())
    };
    posthaste_server::run::run(Arc::clone(store), clock, settings, front, stop).await
}

/// The certificate authorities to trust. A machine without any can still send to http receivers.
fn roots(setting: &RootsFrom) -> Roots {
    match setting {
        RootsFrom::File(roots) => roots.clone(),
        RootsFrom::System => Roots::system().unwrap_or_else(|error| {
            tracing::warn!(%error, "no certificate authorities found, https receivers cannot be reached");
            Roots::none()
        }),
    }
}

/// Cancels `stop` at the first signal and keeps waiting, so that a second signal does not end the process before the
/// shutdown is complete. Returns only if signals cannot be received.
async fn stop_on_signals(stop: &CancellationToken) -> Result<std::convert::Infallible> {
    let (mut interrupt, mut terminate) = (signal(SignalKind::interrupt())?, signal(SignalKind::terminate())?);
    loop {
        tokio::select! {
            _ = interrupt.recv() => {}
            _ = terminate.recv() => {}
        }
        tracing::info!(
            limit_s = STOP_WITHIN.as_secs(),
            "shutting down after attempts in flight have ended; kill -9 loses nothing, but may send twice"
        );
        stop.cancel();
    }
}
