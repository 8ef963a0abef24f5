//! The proof `signatures`: the official `standardwebhooks` libraries from npm and PyPI verify the requests of the real
//! server: with various payloads, before and after a rotation, and with generated and imported secrets. They reject a
//! request in which any one byte is altered.
//!
//! Neither library supports `v1a`; those signatures are verified with Node's own Ed25519.
//!
//! If a library is missing, its figures are left out with a message; with `CI=true` the proof cannot be run then.

use std::io::Write;
use std::process::{Command, Stdio};
use std::time::Duration;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use hyper::{Method, StatusCode};
use posthaste_crypto::signature::Secret;
use posthaste_engine::clock::SystemClock;
use serde_json::{Value, json};

use crate::fixtures::{Launch, Posthaste, binary, block_on, call};
use crate::prove::{CannotRun, Figure, Findings, Options};
use crate::receivers::{Behaviour, RecordedRequest, Recorder};

const ARRIVES_WITHIN: Duration = Duration::from_secs(20);

/// Payloads with spaces, numbers that a parser would rewrite, and letters of more than one byte; and a minimal one.
const PAYLOADS: [&str; 4] = [
    r#"{ "total" : 10.50,  "name":"Jürgen", "items": [1 ,2] }"#,
    r#"{"big":12345678901234567890.000,"a":"\u00e9"}"#,
    r#""漢字 🚀""#,
    "0",
];

pub fn run(_: &Options) -> Findings {
    let (npm, pypi) = (Verifier::Npm.answers()?, Verifier::Pypi.answers()?);
    let binary = binary()?;
    let folder = tempfile::tempdir()?;
    let cases = block_on(collect(Launch::new(&binary, folder.path())))?;
    let mut figures = vec![Figure::at_least("deliveries", cases.len() as f64, "requests", 20.0)];
    for (verifier, answers) in Verifier::ALL.into_iter().zip([npm, pypi]) {
        if answers {
            figures.extend(verifier.judge(&cases)?);
        }
    }
    Ok(figures)
}

/// A request as a receiver got it, and the secret or key to verify it with.
#[derive(Clone)]
struct Case {
    id: String,
    timestamp: String,
    signature: String,
    body: Vec<u8>,
    with: With,
}

#[derive(Clone, PartialEq, Eq)]
enum With {
    Secret(String),
    Public(String),
}

/// Runs a server with endpoints of every kind. Returns all requests, with everything that must verify them.
async fn collect(launch: Launch) -> Result<Vec<Case>, CannotRun> {
    let server = launch.start()?;
    let receiver = Recorder::start(Behaviour::Healthy, Secret::generate(), SystemClock::new()).await?;
    let imported = Secret::generate().reveal().to_string();
    let mut cases = Vec::new();
    for (uid, signing) in [
        ("made", json!({})),
        ("imported", json!({ "secret": imported })),
        ("bare", json!({ "secret": imported.trim_start_matches("whsec_") })),
        ("private", json!({ "scheme": "v1a" })),
        ("rotated", json!({})),
        ("private-rotated", json!({ "scheme": "v1a" })),
        ("leaked", json!({})),
    ] {
        let body = json!({ "url": receiver.url(), "uid": uid, "signing": signing, "event_types": [uid] });
        call(server.address, Method::POST, "/v1/endpoints", &body.to_string()).await?.expect(StatusCode::CREATED)?;
        if uid.ends_with("rotated") {
            rotate(&server, uid, "24h").await?;
        }
        if uid == "leaked" {
            rotate(&server, uid, "0s").await?;
        }
        let arrivals = arrivals(&server, &receiver, uid).await?;
        for with in verified_with(&server, uid).await? {
            cases.extend(arrivals.iter().map(|arrival| Case::of(arrival, with.clone())));
        }
    }
    Ok(cases)
}

async fn rotate(server: &Posthaste, uid: &str, overlap: &str) -> Result<(), CannotRun> {
    let path = format!("/v1/endpoints/{uid}/secret/rotate");
    let body = json!({ "overlap": overlap }).to_string();
    call(server.address, Method::POST, &path, &body).await?.expect(StatusCode::OK).map(drop)
}

/// Sends every payload to the endpoint with this uid. Returns the requests that arrived.
async fn arrivals(server: &Posthaste, receiver: &Recorder, uid: &str) -> Result<Vec<RecordedRequest>, CannotRun> {
    let mut sent = Vec::new();
    for payload in PAYLOADS {
        let body = format!("{{\"event_type\":\"{uid}\",\"payload\":{payload}}}");
        let answer = call(server.address, Method::POST, "/v1/messages", &body).await?.expect(StatusCode::ACCEPTED)?;
        sent.push(answer.text("id").unwrap_or_default().to_owned());
    }
    let all_arrived = |log: &[RecordedRequest]| sent.iter().all(|id| log.iter().any(|arrival| arrival.message == *id));
    if !receiver.waits_for_arrivals(ARRIVES_WITHIN, all_arrived).await {
        return Err(CannotRun(format!("not everything arrived at {uid}")));
    }
    Ok(receiver.arrivals().into_iter().filter(|arrival| sent.contains(&arrival.message)).collect())
}

/// The secrets and public keys with which a receiver of this endpoint can verify now, as the API shows them.
async fn verified_with(server: &Posthaste, uid: &str) -> Result<Vec<With>, CannotRun> {
    let path = format!("/v1/endpoints/{uid}/secret");
    let answer = call(server.address, Method::GET, &path, "").await?.expect(StatusCode::OK)?;
    let current: Value = serde_json::from_str(&answer.body)?;
    let previous = current["previous"].as_array().into_iter().flatten();
    let all = std::iter::once(&current).chain(previous).filter_map(|one| {
        let text = |name: &str| one[name].as_str().map(str::to_owned);
        text("secret").map(With::Secret).or_else(|| text("public_key").map(With::Public))
    });
    Ok(all.collect())
}

impl Case {
    fn of(arrival: &RecordedRequest, with: With) -> Self {
        let field = |name: &str| arrival.headers.get(name).and_then(|value| value.to_str().ok()).unwrap_or_default();
        Self {
            id: field("webhook-id").to_owned(),
            timestamp: field("webhook-timestamp").to_owned(),
            signature: field("webhook-signature").to_owned(),
            body: arrival.body.to_vec(),
            with,
        }
    }

    /// Altered copies: one for every byte of the signed data and of the signatures.
    fn tampered(&self) -> Vec<Self> {
        let mut all = Vec::new();
        for place in 0..self.body.len() {
            let mut body = self.body.clone();
            body[place] ^= 1;
            all.push(Self { body, ..self.clone() });
        }
        for place in 0..self.id.len() {
            all.push(Self { id: other_letter(&self.id, place), ..self.clone() });
        }
        for place in 0..self.timestamp.len() {
            all.push(Self { timestamp: other_letter(&self.timestamp, place), ..self.clone() });
        }
        all.extend(self.tampered_signatures());
        // Bodies that are one byte longer or shorter.
        all.push(Self { body: [&self.body[..], b" "].concat(), ..self.clone() });
        all.push(Self { body: self.body[1..].to_vec(), ..self.clone() });
        all
    }

    /// Copies with the same byte of every signature in the header altered, so that no valid signature is left; and with
    /// other scheme names.
    fn tampered_signatures(&self) -> Vec<Self> {
        let entries: Vec<(&str, Vec<u8>)> = self
            .signature
            .split(' ')
            .filter_map(|entry| entry.split_once(','))
            .filter_map(|(scheme, encoded)| Some((scheme, STANDARD.decode(encoded).ok()?)))
            .collect();
        let longest = entries.iter().map(|(_, bytes)| bytes.len()).max().unwrap_or(0);
        let with = |place: usize| {
            let altered = entries.iter().map(|(scheme, bytes)| {
                let mut bytes = bytes.clone();
                if let Some(byte) = bytes.get_mut(place) {
                    *byte ^= 1;
                }
                format!("{scheme},{}", STANDARD.encode(&bytes))
            });
            altered.collect::<Vec<_>>().join(" ")
        };
        let mut all: Vec<Self> = (0..longest).map(|place| Self { signature: with(place), ..self.clone() }).collect();
        for other in ["v2", "V1", ""] {
            let signature = entries.iter().map(|(_, bytes)| format!("{other},{}", STANDARD.encode(bytes)));
            all.push(Self { signature: signature.collect::<Vec<_>>().join(" "), ..self.clone() });
        }
        all
    }

    fn line(&self) -> String {
        let (secret, public_key) = match &self.with {
            With::Secret(secret) => (Some(secret), None),
            With::Public(key) => (None, Some(key)),
        };
        let headers = json!({
            "webhook-id": self.id, "webhook-timestamp": self.timestamp, "webhook-signature": self.signature,
        });
        let body = STANDARD.encode(&self.body);
        json!({ "secret": secret, "public_key": public_key, "body": body, "headers": headers }).to_string()
    }
}

/// The text with another letter or digit at this index.
fn other_letter(text: &str, place: usize) -> String {
    let mut bytes = text.as_bytes().to_vec();
    bytes[place] = match bytes[place] {
        b'9' => b'8',
        b'z' => b'y',
        digit @ (b'0'..=b'8' | b'a'..=b'y') => digit + 1,
        _ => b'x',
    };
    String::from_utf8_lossy(&bytes).into_owned()
}

/// A library that verifies signatures.
#[derive(Clone, Copy)]
enum Verifier {
    Npm,
    Pypi,
}

impl Verifier {
    const ALL: [Self; 2] = [Self::Npm, Self::Pypi];

    const fn name(self) -> &'static str {
        match self {
            Self::Npm => "npm",
            Self::Pypi => "pypi",
        }
    }

    fn command(self, args: &[&str]) -> Command {
        let (program, path, folder) = match self {
            Self::Npm => ("node", "NODE_PATH", "ci-tools/node/node_modules"),
            Self::Pypi => ("python3", "PYTHONPATH", "ci-tools/python"),
        };
        let mut command = Command::new(program);
        command.args(args);
        if std::env::var_os(path).is_none() {
            // `scripts/test --install` installs it in the target folder of this program.
            let target = std::env::current_exe().ok().and_then(|exe| Some(exe.parent()?.parent()?.join(folder)));
            command.env(path, target.unwrap_or_default());
        }
        command
    }

    /// Whether the library is installed. An error in CI if it is not.
    fn answers(self) -> Result<bool, CannotRun> {
        let import = match self {
            Self::Npm => ["-e", "require('standardwebhooks')"],
            Self::Pypi => ["-c", "import standardwebhooks"],
        };
        if self.command(&import).output().is_ok_and(|output| output.status.success()) {
            return Ok(true);
        }
        let missing = format!("standardwebhooks from {} is not installed", self.name());
        if std::env::var_os("CI").is_some_and(|value| value == "true") {
            return Err(CannotRun(format!("{missing}: `scripts/test --install` installs it beside the build")));
        }
        eprintln!("SKIPPED: {missing}; `scripts/test --install` installs it beside the build");
        Ok(false)
    }

    fn judge(self, cases: &[Case]) -> Result<Vec<Figure>, CannotRun> {
        let knows = |case: &&Case| matches!((self, &case.with), (_, With::Secret(_)) | (Self::Npm, With::Public(_)));
        let known: Vec<Case> = cases.iter().filter(knows).cloned().collect();
        let good = self.verified(&known)?;
        let tampered: Vec<Case> = known.iter().flat_map(Case::tampered).collect();
        let believed = self.verified(&tampered)?;
        // The control: with another secret no request must verify.
        let stranger = With::Secret(Secret::generate().reveal().to_string());
        let strange: Vec<Case> = known.iter().map(|case| Case { with: stranger.clone(), ..case.clone() }).collect();
        let strangers = self.verified(&strange)?;
        let name = |what: &str| format!("{}_{what}", self.name());
        Ok(vec![
            Figure::at_most(&name("refused"), (known.len() - good) as f64, "requests", 0.0),
            Figure::at_least(&name("tampered"), tampered.len() as f64, "requests", 2_000.0),
            Figure::at_most(&name("tampered_believed"), believed as f64, "requests", 0.0),
            Figure::at_most(&name("control_believed"), strangers as f64, "requests", 0.0),
        ])
    }

    /// How many of these requests the library verifies.
    fn verified(self, cases: &[Case]) -> Result<usize, CannotRun> {
        let script = match self {
            Self::Npm => include_str!("signatures/verify.cjs"),
            Self::Pypi => include_str!("signatures/verify.py"),
        };
        let flag = match self {
            Self::Npm => "-e",
            Self::Pypi => "-c",
        };
        let mut child = self.command(&[flag, script]).stdin(Stdio::piped()).stdout(Stdio::piped()).spawn()?;
        let lines: String = cases.iter().map(|case| case.line() + "\n").collect();
        let mut stdin = child.stdin.take().expect("the input is piped");
        // In a thread of its own, because the program writes answers before it has read all of its input.
        let writer = std::thread::spawn(move || stdin.write_all(lines.as_bytes()));
        let output = child.wait_with_output()?;
        writer.join().map_err(|_| CannotRun("a verifier's input could not be written".to_owned()))??;
        let text = String::from_utf8_lossy(&output.stdout);
        let answers: Vec<&str> = text.lines().collect();
        if !output.status.success() || answers.len() != cases.len() {
            let why = format!("{} answered {} of {} requests", self.name(), answers.len(), cases.len());
            return Err(CannotRun(why));
        }
        Ok(answers.iter().filter(|answer| **answer == "ok").count())
    }
}
