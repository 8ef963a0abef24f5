//! A server whose tenant has many endpoints, some of which get messages.

use std::io;
use std::path::Path;

use hyper::{Method, StatusCode};
use posthaste_store::sqlite::Sqlite;
use posthaste_store::{AuditStamp, Directory, Endpoint, EndpointPut, Outbox};
use rusqlite::Connection;

use crate::fixtures::caller::ApiConnection;
use crate::fixtures::posthaste::{Launch, Posthaste};
use crate::fixtures::seeder::{CROWD, SeedShape, SeededTarget, THEN};
use crate::prove::{CannotRun, Context};
use crate::{MASTER_KEY, master_key};

const TENANT: [(&str, &str); 1] = [("posthaste-tenant", CROWD)];
/// The metric that counts rows read for recipients.
const ROWS_READ: &str = "posthaste_recipient_rows_read_total";

/// How a message names its endpoint.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Address {
    Subject,
    Tag,
}

/// Drops the indexes of subjects and tags.
pub(super) fn drop_indexes(folder: &Path) -> Result<(), CannotRun> {
    let conn = Connection::open(folder.join("data").join("posthaste.db"));
    let dropped = conn.and_then(|conn| {
        conn.execute_batch(
            "DROP INDEX endpoint_subject;
             CREATE TABLE unindexed AS SELECT tag, endpoint FROM endpoint_tag;
             DROP TABLE endpoint_tag;
             ALTER TABLE unindexed RENAME TO endpoint_tag;",
        )
    });
    dropped.context("the indexes cannot be dropped")
}

/// Changes the URL of some endpoints to this one, and starts the server.
pub(super) async fn start(
    binary: &Path,
    folder: &Path,
    shape: SeedShape,
    sampled: u64,
    url: &str,
) -> Result<Crowd, CannotRun> {
    let launch = Launch::new(binary, folder).with("POSTHASTE_MASTER_KEY", MASTER_KEY);
    let apart = usize::try_from(shape.lanes / sampled.clamp(1, shape.lanes)).unwrap_or(1);
    let sample: Vec<SeededTarget> = shape.targets().step_by(apart).map(SeededTarget).collect();
    let store = Sqlite::open_folder(&launch.data(), master_key())?;
    let session = store.open(THEN).await?.session;
    let redirect = sample.iter().map(|to| {
        let endpoint = Endpoint { target: to.target(format!("{url}/{}", to.0)), version: 1, ..to.addressed() };
        store.put_endpoint(session, endpoint, None, AuditStamp::at(THEN))
    });
    for put in futures_util::future::join_all(redirect).await {
        if put? != EndpointPut::Done {
            return Err(CannotRun("an endpoint could not be changed".to_owned()));
        }
    }
    store.close().await;
    let server = launch.start()?;
    let line = ApiConnection::open(server.address).await?;
    Ok(Crowd { line, sample, _server: server })
}

/// The server, and a producer's connection to it.
pub(super) struct Crowd {
    line: ApiConnection,
    /// The endpoints that get messages, spread evenly over all.
    sample: Vec<SeededTarget>,
    /// The server's process; it is stopped when this is dropped.
    _server: Posthaste,
}

impl Crowd {
    /// The endpoint for the message with this number.
    pub(super) fn sampled(&self, number: usize) -> SeededTarget {
        self.sample[number % self.sample.len()]
    }

    /// Posts a message for one endpoint. Returns the number of deliveries in the answer.
    pub(super) async fn post(&mut self, to: SeededTarget, address: Address) -> io::Result<Option<u64>> {
        let (kind, name) = match address {
            Address::Subject => ("subjects", to.subject()),
            Address::Tag => ("tags", to.tag()),
        };
        let body = format!(
            "{{\"event_type\":\"crowd.hello\",\"to\":{{\"{kind}\":[\"{name}\"]}},\"payload\":{{\"lane\":{}}}}}",
            to.0
        );
        let answer = self.line.call(Method::POST, "/v1/messages", &TENANT, body).await?.expect(StatusCode::ACCEPTED)?;
        Ok(number_behind(&answer.body, "\"deliveries\":"))
    }

    /// Posts a message for all subscribers of an event type that no endpoint subscribes to.
    pub(super) async fn post_to_all(&mut self) -> io::Result<()> {
        let body = "{\"event_type\":\"other.event\",\"payload\":{}}";
        self.line.call(Method::POST, "/v1/messages", &TENANT, body).await?.expect(StatusCode::ACCEPTED).map(drop)
    }

    /// Adds an endpoint that subscribes to an event type that is never sent.
    pub(super) async fn add_endpoint(&mut self) -> io::Result<()> {
        let body = "{\"url\":\"http://127.0.0.1/\",\"event_types\":[\"crowd.other\"]}";
        self.line.call(Method::POST, "/v1/endpoints", &TENANT, body).await?.expect(StatusCode::CREATED).map(drop)
    }

    /// The server's metric of rows read to find recipients.
    pub(super) async fn rows_read(&mut self) -> io::Result<u64> {
        let metrics = self.line.call(Method::GET, "/metrics", &[], "").await?.expect(StatusCode::OK)?;
        let read = number_behind(&metrics.body, &format!("\n{ROWS_READ} "));
        read.ok_or_else(|| io::Error::other(format!("{ROWS_READ} is missing")))
    }
}

/// The number after some text.
fn number_behind(text: &str, before: &str) -> Option<u64> {
    let (_, behind) = text.split_once(before)?;
    let digits: String = behind.trim_start().chars().take_while(char::is_ascii_digit).collect();
    digits.parse().ok()
}
