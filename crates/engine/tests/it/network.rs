//! A network that a test controls: names with scripted answers, and sockets whose addresses are recorded.

use std::collections::VecDeque;
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use bytes::Bytes;
use futures_util::future::BoxFuture;
use http::header::CONTENT_TYPE;
use posthaste_engine::connector::{ChannelRequest, Fields, Settings};
use posthaste_engine::{
    ConnectionFault, Connector, ConnectorJob, Dial, Done, NoAnswer, ReceivedResponse, Resolve, Roots, Target,
    TargetRules, Tcp,
};
use tokio::net::TcpStream;
use tokio::sync::mpsc;
use tokio::time::Instant;

use crate::harness::loopback_allowed;

#[derive(Clone, Debug)]
pub(crate) enum Lookup {
    Addresses(Vec<IpAddr>),
    Fails(NoAnswer),
    NeverEnds,
}

pub(crate) fn addresses(list: &[&str]) -> Lookup {
    Lookup::Addresses(list.iter().map(|text| text.parse().expect("an address")).collect())
}

/// A resolver with a list of answers, in order and for any name; the last answer repeats.
#[derive(Debug)]
pub(crate) struct Names {
    answers: Mutex<VecDeque<Lookup>>,
    look_ups: Mutex<usize>,
}

impl Names {
    pub(crate) fn new(answers: impl IntoIterator<Item = Lookup>) -> Arc<Self> {
        Arc::new(Self { answers: Mutex::new(answers.into_iter().collect()), look_ups: Mutex::new(0) })
    }

    pub(crate) fn asked(&self) -> usize {
        *self.look_ups.lock().expect("no test panics while it holds the lock")
    }

    fn next(&self) -> Lookup {
        *self.look_ups.lock().expect("no test panics while it holds the lock") += 1;
        let mut answers = self.answers.lock().expect("no test panics while it holds the lock");
        match answers.len() {
            0 => panic!("no look-up was expected"),
            1 => answers[0].clone(),
            _ => answers.pop_front().expect("more than one is left"),
        }
    }
}

impl Resolve for Names {
    fn resolve<'a>(&'a self, _name: &'a str) -> BoxFuture<'a, Result<Vec<IpAddr>, NoAnswer>> {
        Box::pin(async move {
            match self.next() {
                Lookup::Addresses(list) => Ok(list),
                Lookup::Fails(why) => Err(why),
                Lookup::NeverEnds => std::future::pending().await,
            }
        })
    }
}

/// Records every address that the connector dials, and connects to a receiver instead.
#[derive(Debug)]
pub(crate) struct Witness {
    receiver: SocketAddr,
    dialled: Mutex<Vec<SocketAddr>>,
    patience: Patience,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Patience {
    /// At once.
    None,
    /// Once the receiver has done something: sent bytes, closed or reset.
    UntilReadable,
    Endless,
}

impl Witness {
    pub(crate) fn new(receiver: SocketAddr, patience: Patience) -> Arc<Self> {
        Arc::new(Self { receiver, dialled: Mutex::default(), patience })
    }

    pub(crate) fn dialled(&self) -> Vec<SocketAddr> {
        self.dialled.lock().expect("no test panics while it dials").clone()
    }
}

impl Dial for Witness {
    fn dial(&self, to: SocketAddr) -> BoxFuture<'_, io::Result<TcpStream>> {
        self.dialled.lock().expect("no test panics while it dials").push(to);
        Box::pin(async move {
            let stream = TcpStream::connect(self.receiver).await?;
            match self.patience {
                Patience::None => {}
                Patience::UntilReadable => stream.readable().await?,
                Patience::Endless => std::future::pending().await,
            }
            Ok(stream)
        })
    }
}

pub(crate) struct Bench {
    pub(crate) connector: Connector,
    results: mpsc::Receiver<Done>,
    rules: TargetRules,
}

pub(crate) fn settings() -> Settings {
    Settings { rules: loopback_allowed(), ..Settings::default() }
}

/// More than any attempt of a test may take.
const ENOUGH: Duration = Duration::from_secs(10);

/// A timeout far below the defaults and far above what loopback needs, for tests that wait for it.
pub(crate) const SHORT: Duration = Duration::from_millis(100);

impl Bench {
    /// A bench over real sockets, to addresses on loopback alone.
    pub(crate) fn new(settings: Settings) -> Self {
        Self::with(settings, Names::new([]), Arc::new(Tcp), Roots::none())
    }

    pub(crate) fn with(settings: Settings, names: Arc<Names>, dial: Arc<dyn Dial>, roots: Roots) -> Self {
        let rules = settings.rules.clone();
        let (connector, results) = Connector::with_dial(settings, names, dial, roots);
        Self { connector, results, rules }
    }

    pub(crate) fn job(&self, token: u64, url: &str) -> ConnectorJob {
        ConnectorJob {
            token,
            target: Arc::new(Target::parse(url, &self.rules).expect("a target the test may contact")),
            identity: None,
            request: request("{}"),
            deadline: Instant::now() + Duration::from_secs(20),
        }
    }

    /// Sends a job for each of these tokens.
    pub(crate) fn send(&self, tokens: impl IntoIterator<Item = u64>, url: &str) {
        for token in tokens {
            self.connector.send(self.job(token, url)).expect("room for a job");
        }
    }

    pub(crate) async fn next(&mut self) -> Done {
        let done = tokio::time::timeout(ENOUGH, self.results.recv()).await;
        done.expect("every job ends by its deadline").expect("the connector lives as long as the bench")
    }

    pub(crate) async fn attempt(&mut self, url: &str) -> Done {
        self.send([7], url);
        let done = self.next().await;
        assert_eq!(done.token, 7);
        done
    }

    /// Checks that this many jobs that were sent are answered with 200.
    pub(crate) async fn check_answers(&mut self, count: usize) {
        for _ in 0..count {
            assert_eq!(self.next().await.result.expect("an answer").status, 200);
        }
    }

    /// The answer to a request with this body.
    pub(crate) async fn post(&mut self, url: &str, body: &str) -> ReceivedResponse {
        let job = ConnectorJob { request: request(body), ..self.job(1, url) };
        self.connector.send(job).expect("room for a job");
        self.next().await.result.expect("an answer")
    }

    pub(crate) async fn answer(&mut self, url: &str) -> ReceivedResponse {
        self.attempt(url).await.result.expect("an answer")
    }

    pub(crate) async fn fault(&mut self, url: &str) -> ConnectionFault {
        self.attempt(url).await.result.expect_err("a fault")
    }

    /// Waits until the connector has noticed that its connections are closed.
    pub(crate) async fn until_no_connection(&self) {
        while self.connector.connections() > 0 {
            tokio::task::yield_now().await;
        }
    }
}

fn request(body: &str) -> ChannelRequest {
    let mut ours = Fields::default();
    assert!(ours.push(&CONTENT_TYPE, "application/json"));
    ChannelRequest { ours, body: Bytes::copy_from_slice(body.as_bytes()), ..ChannelRequest::default() }
}

/// The result of an attempt: a status, or a cause and its detail.
pub(crate) fn describe(result: &Result<ReceivedResponse, ConnectionFault>) -> String {
    match result {
        Ok(answer) if answer.cut => format!("{} cut", answer.status.as_u16()),
        Ok(answer) => answer.status.as_u16().to_string(),
        Err(fault) => format!("{} {}", fault.cause.code(), fault.detail.unwrap_or_default()).trim_end().to_owned(),
    }
}
