//! The settings: flags, environment, file and embedded defaults, in this order of precedence, parsed once into types.
//! All faults are reported at once.
//!
//! The embedded `posthaste.toml` documents the settings and defines their keys and types: a key that is not in it does
//! not exist. [`layer`] merges the layers.

mod defaults;
mod layer;

use std::ffi::OsString;
use std::net::SocketAddr;
use std::num::ParseIntError;
use std::ops::RangeInclusive;
use std::path::{Path, PathBuf};
use std::str::FromStr;
use std::time::Duration;

use anyhow::{Result, anyhow};
use posthaste_core::policy::PolicyDefaults;
use posthaste_engine::connector::{self, Roots};
use posthaste_engine::master_key::MasterKeySource;
use posthaste_engine::target::{HostPattern, TargetRules};
use posthaste_server::duration;
use posthaste_server::run::ATTEMPT_TIMEOUT_MAX;
use posthaste_store::Retention;
use tracing_subscriber::filter::Targets;

use layer::{Layers, Setting};

const DEFAULT: &str = include_str!("posthaste.toml");
/// With a shorter TTL nearly every row is compared with its history; with a longer one even a row of yesterday is sent
/// after its MAC alone was checked.
const RETRY_TOKEN_TTLS: RangeInclusive<Duration> = Duration::from_secs(10)..=Duration::from_secs(24 * 60 * 60);
/// How long data can be kept: up to ten years.
const KEPT: RangeInclusive<Duration> = Duration::from_secs(60 * 60)..=Duration::from_secs(3_650 * 24 * 60 * 60);
/// The settings file that is read if it exists and no other is named.
const FILE: &str = "posthaste.toml";

#[derive(Debug)]
pub(crate) struct Config {
    pub(crate) listen: SocketAddr,
    pub(crate) data: PathBuf,
    pub(crate) metrics_listen: Option<SocketAddr>,
    pub(crate) log: Targets,
    pub(crate) log_format: LogFormat,
    pub(crate) attempt_timeout: Duration,
    pub(crate) slots: u32,
    pub(crate) targets: TargetRules,
    pub(crate) master_key: MasterKeySource,
    pub(crate) roots: RootsFrom,
    pub(crate) retention: Retention,
    pub(crate) defaults: PolicyDefaults,
    pub(crate) retry_token_ttl: Duration,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum LogFormat {
    Text,
    /// One JSON object a line.
    Json,
}

/// The certificate authorities that receivers' certificates are checked against.
#[derive(Debug)]
pub(crate) enum RootsFrom {
    /// Those that the operating system trusts.
    System,
    /// Those of a file, and no others.
    File(Roots),
}

/// The flags of `serve`.
#[derive(Debug, Default, clap::Args)]
pub(crate) struct Flags {
    /// The settings file [default: posthaste.toml, if it exists]
    #[arg(long, value_name = "FILE")]
    config: Option<PathBuf>,
    /// The data folder [default: ./posthaste-data]
    #[arg(long, value_name = "DIR")]
    data: Option<PathBuf>,
    /// The address to listen on [default: 127.0.0.1:8400]
    #[arg(long, value_name = "ADDR")]
    listen: Option<String>,
    /// A second address that serves metrics to Prometheus without a key [default: none]
    #[arg(long, value_name = "ADDR")]
    metrics_listen: Option<String>,
    /// Any other setting, such as breaker.consecutive=5; can be given several times
    #[arg(long, value_name = "KEY=VALUE")]
    set: Vec<String>,
}

/// The flags of commands that work on a server's data folder: they read the same settings as the server.
#[derive(clap::Args)]
pub(crate) struct SettingsArgs {
    /// The server's settings file [default: posthaste.toml, if it exists]
    #[arg(long, value_name = "FILE")]
    config: Option<PathBuf>,
    /// The data folder [default: as in the server's settings]
    #[arg(long, value_name = "DIR")]
    data: Option<PathBuf>,
    /// Any other setting of the server, such as master_key_file=/etc/posthaste.key; can be given several times
    #[arg(long, value_name = "KEY=VALUE")]
    set: Vec<String>,
}

impl SettingsArgs {
    pub(crate) fn load(&self) -> Result<Config> {
        let Self { config, data, set } = self;
        let flags = Flags { config: config.clone(), data: data.clone(), set: set.clone(), ..Flags::default() };
        Config::load(&flags)
    }
}

/// The faults of the settings.
type Complaints = Vec<String>;

impl Config {
    pub(crate) fn load(flags: &Flags) -> Result<Self> {
        let utf8 = |(name, value): (OsString, OsString)| Some((name.into_string().ok()?, value.into_string().ok()?));
        let environment = std::env::vars_os().filter_map(utf8);
        let parsed = read_file(flags.config.as_deref()).and_then(|file| Self::parse(flags, environment, file));
        parsed.map_err(unusable)
    }

    /// The embedded defaults with this data folder; environment and files are ignored. For `demo`.
    pub(crate) fn in_folder(data: PathBuf) -> Result<Self> {
        let flags = Flags { data: Some(data), ..Flags::default() };
        Self::parse(&flags, std::iter::empty(), None).map_err(unusable)
    }

    fn parse(
        flags: &Flags,
        environment: impl Iterator<Item = (String, String)>,
        file: Option<(String, String)>,
    ) -> Result<Self, Complaints> {
        let mut layers = Layers::new(DEFAULT);
        if let Some((name, text)) = file {
            layers.file(&name, &text);
        }
        layers.environment(environment);
        if let Some(data) = &flags.data {
            layers.flag("data", "--data", &data.to_string_lossy());
        }
        if let Some(listen) = &flags.listen {
            layers.flag("listen", "--listen", listen);
        }
        if let Some(listen) = &flags.metrics_listen {
            layers.flag("metrics_listen", "--metrics-listen", listen);
        }
        for given in &flags.set {
            match given.split_once('=') {
                Some((key, value)) => layers.flag(key.trim(), &format!("--set {}", key.trim()), value.trim()),
                None => layers.complain(format!("--set {given}: must be KEY=VALUE, such as slots=512")),
            }
        }
        let config = read(&mut layers);
        layers.finish()?;
        config.ok_or_else(|| vec!["a setting is missing from the embedded defaults".to_owned()])
    }
}

#[expect(clippy::needless_pass_by_value, reason = "a function for map_err")]
fn unusable(complaints: Complaints) -> anyhow::Error {
    anyhow!("the settings cannot be used:\n  {}", complaints.join("\n  "))
}

/// The file's name and text, if there is one.
fn read_file(named: Option<&Path>) -> Result<Option<(String, String)>, Complaints> {
    let path = named.unwrap_or(Path::new(FILE));
    match std::fs::read_to_string(path) {
        Ok(text) => Ok(Some((path.display().to_string(), text))),
        Err(error) if named.is_none() && error.kind() == std::io::ErrorKind::NotFound => Ok(None),
        Err(error) => Err(vec![format!("cannot read {}: {error}", path.display())]),
    }
}

fn read(layers: &mut Layers) -> Option<Config> {
    let listen: Option<SocketAddr> =
        layers.get("listen", |setting| parsed(setting, "an address such as 127.0.0.1:8400"));
    let data = layers.get("data", |setting| match setting.text() {
        "" => Err("must name a folder".to_owned()),
        folder => Ok(PathBuf::from(folder)),
    });
    let metrics_listen = layers.get("metrics_listen", |setting| match setting.text() {
        "" => Ok(None),
        _ => parsed(setting, "an address such as 127.0.0.1:9464, or empty").map(Some),
    });
    let log = layers.get("log", log);
    let log_format = layers.get("log_format", |setting| match setting.text() {
        "text" => Ok(LogFormat::Text),
        "json" => Ok(LogFormat::Json),
        other => Err(format!("must be text or json, not {other:?}")),
    });
    let roots = layers.get("roots", |setting| match setting.text() {
        "system" => Ok(RootsFrom::System),
        path => Roots::file(Path::new(path)).map(RootsFrom::File).map_err(|error| error.to_string()),
    });
    let retention = retention(layers);
    let defaults = defaults::read(layers);
    let retry_token_ttl = layers.get("retry_token_ttl", |setting| {
        let given = duration::parse(setting.text()).filter(|given| RETRY_TOKEN_TTLS.contains(given));
        given.ok_or_else(|| {
            let (least, most) = (duration::write(*RETRY_TOKEN_TTLS.start()), duration::write(*RETRY_TOKEN_TTLS.end()));
            format!("must be {least} to {most}, not {:?}", setting.text())
        })
    });
    if let (Some(listen), Some(Some(metrics))) = (&listen, &metrics_listen)
        && listen == metrics
        && metrics.port() != 0
    {
        layers.complain("listen and metrics_listen are the same address: use two".to_owned());
    }
    let attempt_timeout = layers.get("attempt_timeout", |setting| {
        let range = Duration::from_secs(1)..=ATTEMPT_TIMEOUT_MAX;
        let given = duration::parse(setting.text()).filter(|given| range.contains(given));
        given.ok_or_else(|| format!("must be 1s to {}", duration::write(ATTEMPT_TIMEOUT_MAX)))
    });
    let slots = layers.get("slots", |setting| {
        let max = slots_max();
        let given = u32::try_from(setting.number()).ok().filter(|given| (1..=max).contains(given));
        given.ok_or_else(|| format!("must be 1 to {max}"))
    });
    let allow_http = layers.get("targets.allow_http", |setting| Ok(setting.truth()));
    let allow_networks = layers.get("targets.allow_networks", |setting| list(setting, "a network such as 10.1.0.0/16"));
    let deny_ports = layers.get("targets.deny_ports", |setting| {
        list::<DeniedPort>(setting, "a port such as 6379, with a reason behind a space if you like")
    });
    let deny_hosts = layers.get("targets.deny_hosts", |setting| {
        list::<HostPattern>(setting, "a host such as example.net or a pattern such as *.example.net")
    });
    let allow_ip_literals = layers.get("targets.allow_ip_literals", |setting| Ok(setting.truth()));
    let master_key = master_key(layers);
    Some(Config {
        listen: listen?,
        data: data?,
        metrics_listen: metrics_listen?,
        log: log?,
        log_format: log_format?,
        attempt_timeout: attempt_timeout?,
        slots: slots?,
        targets: TargetRules {
            allow_http: allow_http?,
            allow_networks: allow_networks?,
            deny_hosts: deny_hosts?,
            allow_ip_literals: allow_ip_literals?,
            deny_ports: deny_ports?.iter().map(|denied| denied.0).collect(),
            ..TargetRules::default()
        },
        master_key: master_key?,
        roots: roots?,
        retention: retention?,
        defaults: defaults?,
        retry_token_ttl: retry_token_ttl?,
    })
}

const LEVELS: [&str; 6] = ["off", "error", "warn", "info", "debug", "trace"];

/// Parses a log filter. A single word must be a level: taken as a module's name it would silence all other modules.
fn log(setting: &Setting) -> Result<Targets, String> {
    let levels = LEVELS.join(", ");
    let form = format!("one of {levels}, or a list such as \"info,posthaste_engine=debug\"");
    let level = |part: &str| part.rsplit('=').next().unwrap_or_default().trim().to_owned();
    if setting.text().split(',').all(|part| LEVELS.contains(&level(part).as_str())) {
        return parsed(setting, &form);
    }
    Err(format!("must be {form}, not {:?}", setting.text()))
}

/// Reads the times. A time out of bounds, or longer than one that must outlast it, is a complaint.
fn retention(layers: &mut Layers) -> Option<Retention> {
    let payload = layers.get("retention.payload", kept);
    let history = layers.get("retention.history", kept);
    let journal = layers.get("retention.audit", kept);
    let retention = Retention { payload: payload?, history: history?, journal: journal? };
    // The audit trail must outlast the history that it proves, and the history the payload it belongs to.
    if retention.history > retention.journal {
        layers.complain(
            "retention.history is longer than retention.audit: the audit trail must be kept as long as what it proves"
                .to_owned(),
        );
    }
    if retention.payload > retention.history {
        layers.complain(
            "retention.payload is longer than retention.history: keep the history as long as the payload".to_owned(),
        );
    }
    Some(retention)
}

fn kept(setting: &Setting) -> Result<Duration, String> {
    let given = duration::parse(setting.text()).filter(|given| KEPT.contains(given));
    given.ok_or_else(|| format!("must be 1h to {}, not {:?}", duration::write(*KEPT.end()), setting.text()))
}

/// Reads the source, by default a file in the data folder. More than one is a complaint.
fn master_key(layers: &mut Layers) -> Option<MasterKeySource> {
    let text = |setting: &Setting| {
        // Errors name the setting as it was written.
        let named = setting.source().to_owned();
        let text = setting.text().to_owned();
        (!text.is_empty()).then(|| MasterKeySource::Text { named, text: text.into() })
    };
    let file = |setting: &Setting| match setting.text() {
        "" => None,
        path => Some(MasterKeySource::File(PathBuf::from(path))),
    };
    let command =
        |setting: &Setting| Some(setting.texts()).filter(|words| !words.is_empty()).map(MasterKeySource::Command);
    let mut given = [
        given(layers, "master_key", text),
        given(layers, "master_key_file", file),
        given(layers, "master_key_command", command),
    ]
    .into_iter()
    .flatten();
    let Some((named, source)) = given.next() else { return Some(MasterKeySource::Folder) };
    let Some((other, _)) = given.next() else { return Some(source) };
    layers.complain(format!("{named} and {other} are both set: keep one"));
    None
}

fn given(
    layers: &mut Layers,
    key: &str,
    read: impl FnOnce(&Setting) -> Option<MasterKeySource>,
) -> Option<(String, MasterKeySource)> {
    layers.get(key, |setting| Ok(read(setting).map(|source| (setting.source().to_owned(), source))))?
}

/// The most slots: the connector's default bound of jobs, since each attempt under way is one job.
fn slots_max() -> u32 {
    u32::try_from(connector::Settings::default().jobs_max).unwrap_or(u32::MAX)
}

fn parsed<T: FromStr>(setting: &Setting, form: &str) -> Result<T, String> {
    setting.text().parse().map_err(|_| format!("must be {form}, not {:?}", setting.text()))
}

/// An entry of `targets.deny_ports`: a port, and after a space the reason, which is for readers of the file.
struct DeniedPort(u16);

impl FromStr for DeniedPort {
    type Err = ParseIntError;

    fn from_str(text: &str) -> Result<Self, ParseIntError> {
        let (port, _reason) = text.split_once(' ').unwrap_or((text, ""));
        port.parse().map(Self)
    }
}

fn list<T: FromStr>(setting: &Setting, form: &str) -> Result<Vec<T>, String> {
    let each = |text: &String| text.parse().map_err(|_| format!("each must be {form}, not {text:?}"));
    setting.texts().iter().map(each).collect()
}

#[cfg(test)]
mod tests {
    use posthaste_engine::target::DENY_PORTS;
    use posthaste_server::run::STOP_WITHIN;

    use super::*;

    fn parse(environment: &[(&str, &str)], file: &str, flags: &Flags) -> Result<Config, Complaints> {
        let environment = environment.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned()));
        Config::parse(flags, environment, Some(("posthaste.toml".to_owned(), file.to_owned())))
    }

    fn complaints(environment: &[(&str, &str)], file: &str) -> Vec<String> {
        parse(environment, file, &Flags::default()).expect_err("bad settings")
    }

    #[test]
    fn the_embedded_defaults_are_usable() {
        let config = Config::parse(&Flags::default(), std::iter::empty(), None).expect("good settings");
        assert_eq!(config.listen, SocketAddr::from(([127, 0, 0, 1], 8400)));
        assert_eq!((config.slots, config.attempt_timeout), (1_024, Duration::from_secs(30)));
        assert!(!config.targets.allow_http && config.targets.allow_ip_literals);
        assert_eq!(config.targets.deny_ports, DENY_PORTS);
        assert_eq!(config.retention, Retention::default());
    }

    #[test]
    fn retention_times_are_bounded_and_ordered() {
        let days = |days: u64| Duration::from_secs(days * 24 * 60 * 60);
        let config = parse(&[], "[retention]\npayload = \"1d\"\nhistory = \"90d\"", &Flags::default());
        let retention = config.expect("good settings").retention;
        assert_eq!((retention.payload, retention.history), (days(1), days(90)));
        let short = complaints(&[], "[retention]\npayload = \"1s\"\nhistory = \"500d\"\naudit = \"450d\"");
        assert_eq!(short, ["retention.payload in posthaste.toml: must be 1h to 3650d, not \"1s\""]);
        let unordered = complaints(&[], "[retention]\npayload = \"60d\"\nhistory = \"40d\"\naudit = \"30d\"");
        assert_eq!(unordered.len(), 2, "{unordered:?}");
    }

    #[test]
    fn the_bounds_in_the_settings_file_match_the_code() {
        let documented = [
            format!("answer: 1s to {}. A shutdown", duration::write(ATTEMPT_TIMEOUT_MAX)),
            format!("up to {} s in all", STOP_WITHIN.as_secs()),
            format!("over all endpoints: 1 to {}.", slots_max()),
        ];
        for text in documented {
            assert!(DEFAULT.contains(&text), "{text}");
        }
        let most = format!("attempt_timeout = \"30s\"\nslots = {}", slots_max());
        assert_eq!(parse(&[], &most, &Flags::default()).expect("good settings").slots, slots_max());
        let more = format!("attempt_timeout = \"31s\"\nslots = {}", slots_max() + 1);
        assert_eq!(
            complaints(&[], &more),
            ["attempt_timeout in posthaste.toml: must be 1s to 30s", "slots in posthaste.toml: must be 1 to 4096"]
        );
    }

    #[test]
    fn kubernetes_service_variables_are_ignored() {
        let links = [
            ("POSTHASTE_SERVICE_HOST", "10.0.0.11"),
            ("POSTHASTE_SERVICE_PORT", "8400"),
            ("POSTHASTE_SERVICE_PORT_HTTP", "8400"),
            ("POSTHASTE_EU_SERVICE_HOST", "10.0.0.12"),
            ("POSTHASTE_PORT", "tcp://10.0.0.11:8400"),
            ("POSTHASTE_PORT_8400_TCP", "tcp://10.0.0.11:8400"),
            ("POSTHASTE_PORT_8400_TCP_PROTO", "tcp"),
        ];
        assert!(parse(&links, "", &Flags::default()).is_ok());
        for (name, value) in [("POSTHASTE_PORT", "8400"), ("POSTHASTE_PORTS", "8400"), ("POSTHASTE_HOST", "x")] {
            let found = complaints(&[(name, value)], "");
            assert!(found[0].starts_with(&format!("{name} in the environment: there is no such setting")), "{found:?}");
        }
    }

    #[test]
    fn metrics_logs_and_roots_are_set_by_word_or_file() {
        let config = Config::parse(&Flags::default(), std::iter::empty(), None).expect("good settings");
        assert_eq!((config.metrics_listen, config.log_format), (None, LogFormat::Text));
        assert!(matches!(config.roots, RootsFrom::System));
        let flags = Flags { metrics_listen: Some("127.0.0.1:9464".to_owned()), ..Flags::default() };
        let config = parse(&[("POSTHASTE_LOG_FORMAT", "json")], "", &flags).expect("good settings");
        assert_eq!(config.metrics_listen, Some(SocketAddr::from(([127, 0, 0, 1], 9464))));
        assert_eq!(config.log_format, LogFormat::Json);
        let bad = "metrics_listen = \"127.0.0.1:8400\"\nlog_format = \"xml\"\nroots = \"nowhere/roots.pem\"";
        let found = complaints(&[], bad);
        assert_eq!(found[0], "log_format in posthaste.toml: must be text or json, not \"xml\"");
        assert!(
            found[1].starts_with("roots in posthaste.toml: ") && found[1].contains("nowhere/roots.pem"),
            "{found:?}"
        );
        assert_eq!(found[2], "listen and metrics_listen are the same address: use two");
    }

    #[test]
    fn every_setting_can_be_given_as_a_flag() {
        let set =
            |given: &[&str]| Flags { set: given.iter().map(|one| (*one).to_owned()).collect(), ..Flags::default() };
        let environment = [("POSTHASTE_RETRY_TOKEN_TTL", "1m"), ("POSTHASTE_BREAKER__FAILURE_RATE", "0.25")];
        let config =
            parse(&environment, "slots = 7", &set(&["slots=9", "retry_token_ttl = 2m"])).expect("good settings");
        assert_eq!((config.slots, config.retry_token_ttl), (9, Duration::from_secs(120)));
        assert_eq!(config.defaults.breaker.failure_rate, Some(0.25));
        let found = parse(&[], "", &set(&["slots", "slotz=1", "retry_token_ttl=1s"])).expect_err("bad settings");
        assert_eq!(
            found,
            [
                "--set slots: must be KEY=VALUE, such as slots=512",
                "--set slotz: there is no such setting; the nearest is slots",
                "--set retry_token_ttl: must be 10s to 1d, not \"1s\"",
            ]
        );
    }

    #[test]
    fn a_flag_beats_the_environment_which_beats_the_file() {
        let file =
            "listen = \"127.0.0.1:1\"\nslots = 7\ndata = \"from-file\"\n[targets]\nallow_networks = [\"10.0.0.0/8\"]";
        let environment = [("POSTHASTE_LISTEN", "127.0.0.1:2"), ("POSTHASTE_DATA", "from-env")];
        let flags = Flags { listen: Some("127.0.0.1:3".to_owned()), ..Flags::default() };
        let config = parse(&environment, file, &flags).expect("good settings");
        assert_eq!((config.listen.port(), config.data, config.slots), (3, PathBuf::from("from-env"), 7));
        assert_eq!(config.targets.allow_networks.len(), 1);
    }

    #[test]
    fn environment_variables_can_set_nested_keys_and_lists() {
        let environment = [
            ("POSTHASTE_TARGETS__ALLOW_HTTP", "true"),
            ("POSTHASTE_TARGETS__ALLOW_NETWORKS", "10.0.0.0/8, 192.168.1.0/24"),
            ("POSTHASTE_SLOTS", "12"),
            ("HOME", "elsewhere"),
        ];
        let config = parse(&environment, "", &Flags::default()).expect("good settings");
        assert!(config.targets.allow_http);
        assert_eq!((config.targets.allow_networks.len(), config.slots), (2, 12));
    }

    #[test]
    fn a_value_can_be_read_from_a_file() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("listen");
        std::fs::write(&path, "127.0.0.1:9\n").expect("a file");
        let environment = [("POSTHASTE_LISTEN_FILE", path.to_str().expect("a path in UTF-8"))];
        assert_eq!(parse(&environment, "", &Flags::default()).expect("good settings").listen.port(), 9);
        let both = [("POSTHASTE_LISTEN", "127.0.0.1:1"), environment[0]];
        assert_eq!(complaints(&both, ""), ["POSTHASTE_LISTEN and POSTHASTE_LISTEN_FILE are both set: keep one"]);
    }

    #[test]
    fn the_master_key_comes_from_one_source() {
        let source = |environment: &[(&str, &str)], file: &str| {
            parse(environment, file, &Flags::default()).expect("good settings").master_key.to_string()
        };
        assert_eq!(source(&[], ""), "master.key in the data folder");
        assert_eq!(source(&[("POSTHASTE_MASTER_KEY", "x")], ""), "POSTHASTE_MASTER_KEY in the environment");
        assert_eq!(source(&[("POSTHASTE_MASTER_KEY_FILE", "a/key")], ""), "a/key");
        assert_eq!(source(&[], "master_key_file = \"a/key\""), "a/key");
        assert_eq!(source(&[("POSTHASTE_MASTER_KEY_COMMAND", "kms,decrypt")], ""), "the command kms decrypt");
        assert_eq!(source(&[], "master_key_command = [\"kms\", \"decrypt\"]"), "the command kms decrypt");

        let both = [("POSTHASTE_MASTER_KEY", "hunter2"), ("POSTHASTE_MASTER_KEY_FILE", "a/key")];
        assert_eq!(
            complaints(&both, ""),
            [
                "POSTHASTE_MASTER_KEY in the environment and POSTHASTE_MASTER_KEY_FILE in the environment are both set: keep one"
            ]
        );
        assert_eq!(
            complaints(&both[..1], "master_key_command = [\"kms\"]"),
            ["POSTHASTE_MASTER_KEY in the environment and master_key_command in posthaste.toml are both set: keep one"]
        );
    }

    #[test]
    fn a_master_key_in_the_file_is_refused_and_not_shown() {
        assert_eq!(
            complaints(&[], "master_key = \"hunter2\""),
            [
                "master_key in posthaste.toml: a secret does not belong there; set POSTHASTE_MASTER_KEY or POSTHASTE_MASTER_KEY_FILE in the environment"
            ]
        );
    }

    #[test]
    fn all_faults_are_reported_at_once_with_their_source() {
        let file =
            "lisen = \"x\"\nslots = \"many\"\nattempt_timeout = \"45s\"\n[targets]\nallow_htp = true\n[sinks]\na = 1";
        let environment = [("POSTHASTE_TARGETS__DENY_HOSTS", "*"), ("POSTHASTE_LOGG", "info")];
        let found = complaints(&environment, file);
        assert_eq!(
            found,
            [
                "lisen in posthaste.toml: there is no such setting; the nearest is listen",
                "sinks.a in posthaste.toml: there is no such setting",
                "slots in posthaste.toml: must be a whole number",
                "targets.allow_htp in posthaste.toml: there is no such setting; the nearest is targets.allow_http",
                "POSTHASTE_LOGG in the environment: there is no such setting; the nearest is POSTHASTE_LOG",
                "attempt_timeout in posthaste.toml: must be 1s to 30s",
                "POSTHASTE_TARGETS__DENY_HOSTS in the environment: each must be a host such as example.net or a pattern such as *.example.net, not \"*\"",
            ]
        );
    }

    #[test]
    fn an_unknown_log_level_is_refused_with_the_list_of_levels() {
        for good in ["info", "off", "info,posthaste_engine=debug", "warn, posthaste_store=trace"] {
            assert!(parse(&[("POSTHASTE_LOG", good)], "", &Flags::default()).is_ok(), "{good}");
        }
        for bad in ["lots", "", "info,posthaste_engine", "posthaste_engine=lots", "info,"] {
            let found = complaints(&[("POSTHASTE_LOG", bad)], "");
            let beginning = "POSTHASTE_LOG in the environment: must be one of off, error, warn, info, debug, trace, or";
            assert!(found[0].starts_with(beginning), "{found:?}");
        }
    }

    #[test]
    fn a_file_that_is_not_toml_is_refused_with_its_name() {
        let found = complaints(&[], "listen = \n");
        assert!(found[0].starts_with("posthaste.toml:"), "{found:?}");
    }
}
