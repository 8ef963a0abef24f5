//! The proof `thread`: a message's complete path through the real binary over real sockets and a real file, and the
//! same path with `kill -9` in between.
//!
//! The messages that were answered with `202` are compared with the receiver's log. The counts do not depend on the
//! server.

use std::collections::BTreeSet;
use std::net::SocketAddr;
use std::path::Path;
use std::time::Duration;

use hyper::{Method, StatusCode};
use posthaste_crypto::signature::Secret;
use posthaste_engine::clock::SystemClock;
use tokio::io::AsyncWriteExt;
use tokio::net::TcpStream;
use tokio::task::JoinSet;

use crate::fixtures::{ApiAnswer, Launch, Posthaste, binary, block_on, call};
use crate::prove::{CannotRun, Figure, Findings, Options, count};
use crate::receivers::{Behaviour, RecordedRequest, Recorder};

/// How often the server is killed in each way.
const CYCLES: u32 = 20;
const CYCLES_QUICK: u32 = 3;
/// Messages under way when the server is killed at work.
const BURST: usize = 40;
/// The longest wait for an arrival. A retry may come 10 s after a kill; everything else comes at once.
const ARRIVES_WITHIN: Duration = Duration::from_secs(30);

/// A payload with spaces, a number that a parser would rewrite, and a letter of two bytes. It must arrive unchanged.
const PAYLOAD: &str = r#"{ "total" : 10.50,  "name":"Jürgen", "items": [1 ,2] }"#;

pub fn run(options: &Options) -> Findings {
    let cycles = if options.quick { CYCLES_QUICK } else { CYCLES };
    block_on(prove(&binary()?, cycles))
}

async fn prove(binary: &Path, cycles: u32) -> Findings {
    let folder = tempfile::tempdir()?;
    let mut world = World::begin(Launch::new(binary, folder.path())).await?;
    let sound = world.check_one_message().await?;
    eprintln!("a message: {sound} of {SOUND} checks hold");
    for cycle in 0..cycles {
        world.kill_between_accept_and_send().await?;
        world.kill_at_work(cycle).await?;
        eprintln!("killed {} times, {} messages acknowledged", world.kills, world.promised.len());
    }
    world.kill_before_accept().await?;
    world.wait_for_all().await;
    Ok(world.figures(cycles, sound))
}

/// How many checks are made of one message.
const SOUND: usize = 9;

/// A server, its receiver, and the acknowledged messages.
struct World {
    launch: Launch,
    server: Posthaste,
    receiver: Recorder,
    promised: Vec<String>,
    kills: u32,
    /// Messages that were acknowledged while everything was paused.
    held: Vec<String>,
    /// How many of them arrived during the pause.
    early: usize,
}

impl World {
    async fn begin(launch: Launch) -> Result<Self, CannotRun> {
        let server = launch.start()?;
        let secret = Secret::generate();
        let written = secret.reveal();
        let receiver = Recorder::start(Behaviour::Healthy, secret, SystemClock::new()).await?;
        let body = format!("{{\"url\":\"{}\",\"signing\":{{\"secret\":\"{}\"}}}}", receiver.url(), written.as_str());
        call(server.address, Method::POST, "/v1/endpoints", &body).await?.expect(StatusCode::CREATED)?;
        Ok(Self { launch, server, receiver, promised: Vec::new(), kills: 0, held: Vec::new(), early: 0 })
    }

    /// Sends one message, and checks everything about its arrival. Returns how many checks hold.
    async fn check_one_message(&mut self) -> Result<usize, CannotRun> {
        let body = format!("{{\"event_type\":\"invoice.paid\",\"correlation_id\":\"order-99\",\"payload\":{PAYLOAD}}}");
        let answer = call(self.server.address, Method::POST, "/v1/messages", &body).await?;
        let id = self.promise(answer)?;
        self.waits_for(&id).await;
        let arrivals = self.receiver.arrivals();
        let Some(arrival) = arrivals.iter().find(|arrival| arrival.message == id) else { return Ok(0) };
        let field = |name: &str| arrival.headers.get(name).and_then(|value| value.to_str().ok()).unwrap_or_default();
        let state = self.state(arrival).await?;
        let checks: [(&str, bool); SOUND] = [
            ("the body is the payload, byte for byte", arrival.body == PAYLOAD.as_bytes()),
            ("the signature is good and recent", arrival.is_signed),
            ("content-type", field("content-type") == "application/json"),
            ("user-agent", field("user-agent").starts_with("Posthaste/")),
            ("posthaste-attempt", field("posthaste-attempt") == "1"),
            ("posthaste-event-type", field("posthaste-event-type") == "invoice.paid"),
            ("posthaste-correlation-id", field("posthaste-correlation-id") == "order-99"),
            ("it arrived once", arrivals.len() == 1),
            ("its state in the API is delivered", state == "delivered"),
        ];
        checks.iter().filter(|(_, holds)| !holds).for_each(|(name, _)| eprintln!("does not hold: {name}"));
        Ok(checks.iter().filter(|(_, holds)| *holds).count())
    }

    /// Kills the server between accept and send: pauses everything, has a message accepted, kills and restarts the
    /// server, and resumes.
    async fn kill_between_accept_and_send(&mut self) -> Result<(), CannotRun> {
        self.switch("pause").await?;
        let answer = send(self.server.address, self.promised.len()).await?;
        let id = self.promise(answer)?;
        self.kill_and_restart()?;
        self.early += self.receiver.arrivals().iter().filter(|arrival| arrival.message == id).count();
        self.switch("resume").await?;
        self.waits_for(&id).await;
        // Waits until the deliveries are settled, so that the next kill cannot duplicate them.
        for arrival in self.receiver.arrivals().iter().filter(|arrival| arrival.message == id) {
            self.state(arrival).await?;
        }
        self.held.push(id);
        Ok(())
    }

    /// Kills the server after one of many accepts, in each cycle after another one.
    async fn kill_at_work(&mut self, cycle: u32) -> Result<(), CannotRun> {
        let enough = 1 + (cycle as usize * 7) % BURST;
        let mut sending = JoinSet::new();
        for number in 0..BURST {
            sending.spawn(send(self.server.address, number));
        }
        let mut answered = 0;
        while let Some(ended) = sending.join_next().await {
            // Calls that fail after the kill were not acknowledged.
            let Ok(Ok(answer)) = ended else { continue };
            self.promise(answer)?;
            answered += 1;
            if answered == enough {
                self.server.kill()?;
            }
        }
        self.kill_and_restart()
    }

    /// Kills the server during an incomplete request, which must never arrive.
    async fn kill_before_accept(&mut self) -> Result<(), CannotRun> {
        let mut stream = TcpStream::connect(self.server.address).await?;
        let head = "POST /v1/messages HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\ncontent-length: 40\r\n\r\n";
        stream.write_all(format!("{head}{{\"payload\":\"half\"").as_bytes()).await?;
        stream.flush().await?;
        self.kill_and_restart()
    }

    async fn wait_for_all(&self) {
        let lost = |arrivals: &[RecordedRequest]| lost(&self.promised, arrivals);
        if !self.receiver.waits_for_arrivals(ARRIVES_WITHIN, |arrivals| lost(arrivals) == 0).await {
            eprintln!("not everything arrived within {} s", ARRIVES_WITHIN.as_secs());
        }
    }

    fn figures(&self, cycles: u32, sound: usize) -> Vec<Figure> {
        let arrivals = self.receiver.arrivals();
        let arrived = self.promised.len() - lost(&self.promised, &arrivals);
        let distinct: BTreeSet<&str> = arrivals.iter().map(|arrival| arrival.message.as_str()).collect();
        let duplicates = arrivals.len() - distinct.len();
        let held_twice = self.held.iter().filter(|id| arrivals.iter().filter(|one| one.message == **id).count() != 1);
        let half = arrivals.iter().filter(|arrival| arrival.body == "\"half\"").count();
        let unsigned = arrivals.iter().filter(|arrival| !arrival.is_signed).count();
        // The control: the count must be able to fail, with a message that was never acknowledged.
        let control = [self.promised.as_slice(), &["msg_never_promised".to_owned()]].concat();
        vec![
            Figure::at_least("checks_of_one_message", count(sound), "checks", count(SOUND)),
            Figure::at_least("kills", f64::from(self.kills), "kills", f64::from(2 * cycles)),
            Figure::at_least("arrived", count(arrived), "messages", count(self.promised.len())),
            Figure::at_most("lost", count(lost(&self.promised, &arrivals)), "messages", 0.0),
            // Deliveries that had arrived but were not settled at a kill: at most each message of a burst, once.
            Figure::at_most("duplicates", count(duplicates), "messages", f64::from(cycles) * count(BURST)),
            Figure::at_most("held_not_exactly_once", count(held_twice.count()), "messages", 0.0),
            Figure::at_most("sent_while_paused", count(self.early), "messages", 0.0),
            Figure::at_most("unsigned", count(unsigned), "messages", 0.0),
            Figure::at_most("arrived_unpromised_half", count(half), "messages", 0.0),
            Figure::at_least("control_lost", count(lost(&control, &arrivals)), "messages", 1.0),
        ]
    }

    fn promise(&mut self, answer: ApiAnswer) -> Result<String, CannotRun> {
        let promised = answer.expect(StatusCode::ACCEPTED)?;
        let id = promised.id()?;
        self.promised.push(id.clone());
        Ok(id)
    }

    fn kill_and_restart(&mut self) -> Result<(), CannotRun> {
        self.server.kill()?;
        self.kills += 1;
        self.server = self.launch.start()?;
        Ok(())
    }

    async fn switch(&self, verb: &str) -> Result<(), CannotRun> {
        let answer = call(self.server.address, Method::POST, &format!("/v1/{verb}"), "{\"scope\":\"all\"}").await?;
        answer.expect(StatusCode::OK).map(drop)
    }

    /// A delivery's state in the API, once it is `delivered` or a second has passed: its outcome becomes durable
    /// shortly after the receiver's answer.
    async fn state(&self, arrival: &RecordedRequest) -> Result<String, CannotRun> {
        let path = format!("/v1/deliveries/{}", arrival.delivery);
        let mut state = String::new();
        for _ in 0..100 {
            let answer = call(self.server.address, Method::GET, &path, "").await?;
            state = answer.text("state").unwrap_or_default().to_owned();
            if state == "delivered" {
                break;
            }
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
        Ok(state)
    }

    async fn waits_for(&self, id: &str) {
        self.receiver
            .waits_for_arrivals(ARRIVES_WITHIN, |arrivals| arrivals.iter().any(|arrival| arrival.message == id))
            .await;
    }
}

/// How many promised messages are not in the receiver's log.
fn lost(promised: &[String], arrivals: &[RecordedRequest]) -> usize {
    let arrived: BTreeSet<&str> = arrivals.iter().map(|arrival| arrival.message.as_str()).collect();
    promised.iter().filter(|id| !arrived.contains(id.as_str())).count()
}

async fn send(server: SocketAddr, number: usize) -> Result<ApiAnswer, CannotRun> {
    Ok(call(server, Method::POST, "/v1/messages", &format!("{{\"payload\":{{\"number\":{number}}}}}")).await?)
}
