//! A client of the demo's server that reconnects after the server was killed and started again.

use std::io;
use std::net::SocketAddr;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use hyper::{Method, StatusCode};
use posthaste_testkit::fixtures::caller::{ApiAnswer, ApiConnection};
use serde_json::Value;
use tokio::sync::watch;

/// The wait before a call that failed is repeated.
const RETRY_EVERY: Duration = Duration::from_millis(20);

/// The server's address; `None` while no server runs.
pub(super) type ServerAddress = watch::Receiver<Option<SocketAddr>>;

#[derive(Debug)]
pub(super) struct ReconnectingClient {
    server: ServerAddress,
    line: Option<ApiConnection>,
    /// Calls that had no answer and were repeated.
    pub(super) repeated: usize,
}

impl ReconnectingClient {
    pub(super) fn new(server: ServerAddress) -> Self {
        Self { server, line: None, repeated: 0 }
    }

    pub(super) async fn get(&mut self, path: &str) -> Result<Value> {
        let answer = self.answered(&Method::GET, path, &[], "").await?;
        ensure!(answer.status == StatusCode::OK, "GET {path} was answered {}: {}", answer.status, answer.body);
        Ok(serde_json::from_str(&answer.body)?)
    }

    /// The answer to a POST with an idempotency key, which is repeated if no answer comes.
    pub(super) async fn post_once(&mut self, path: &str, key: &str, body: &Value) -> Result<ApiAnswer> {
        self.answered(&Method::POST, path, &[("idempotency-key", key)], &body.to_string()).await
    }

    /// The answer to a POST that is safe to repeat, which is repeated if no answer comes.
    pub(super) async fn post(&mut self, path: &str, body: &Value) -> Result<ApiAnswer> {
        self.answered(&Method::POST, path, &[], &body.to_string()).await
    }

    /// Calls until there is an answer, also if the server is killed meanwhile.
    async fn answered(
        &mut self,
        method: &Method,
        path: &str,
        fields: &[(&str, &str)],
        body: &str,
    ) -> Result<ApiAnswer> {
        loop {
            let address = *self.server.wait_for(Option::is_some).await.context("the demo has ended")?;
            let Some(address) = address else { continue };
            match self.call(address, method.clone(), path, fields, body).await {
                Ok(answer) => return Ok(answer),
                Err(error) if error.kind() == io::ErrorKind::TimedOut => {
                    return Err(error).context("the server gives no answer");
                }
                Err(_) => {}
            }
            self.line = None;
            self.repeated += 1;
            tokio::time::sleep(RETRY_EVERY).await;
        }
    }

    async fn call(
        &mut self,
        address: SocketAddr,
        method: Method,
        path: &str,
        fields: &[(&str, &str)],
        body: &str,
    ) -> io::Result<ApiAnswer> {
        let line = match &mut self.line {
            Some(line) => line,
            none => none.insert(ApiConnection::open(address).await?),
        };
        line.call(method, path, fields, body.to_owned()).await
    }
}
