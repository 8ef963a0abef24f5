//! How long messages, history and the audit trail are kept, with the order that the times must have.

use std::time::Duration;

use posthaste_server::duration;
use posthaste_store::Retention;

use super::layer::{Layers, Setting};

const HOUR: Duration = Duration::from_secs(60 * 60);
/// Ten years.
const MAX: Duration = Duration::from_secs(3_650 * 24 * 60 * 60);

/// Reads the times. A time out of bounds, or longer than one that must outlast it, is a complaint.
pub(super) fn read(layers: &mut Layers) -> Option<Retention> {
    let payload = layers.get("retention.payload", time);
    let history = layers.get("retention.history", time);
    let journal = layers.get("retention.audit", time);
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

fn time(setting: &Setting) -> Result<Duration, String> {
    let given = duration::parse(setting.text()).filter(|given| (HOUR..=MAX).contains(given));
    given.ok_or_else(|| format!("must be 1h to {}, not {:?}", duration::write(MAX), setting.text()))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(file: &str) -> (Option<Retention>, Vec<String>) {
        let mut layers = Layers::new(super::super::DEFAULT);
        layers.file("posthaste.toml", file);
        let read = read(&mut layers);
        (read, layers.finish().err().unwrap_or_default())
    }

    #[test]
    fn the_embedded_defaults_match_the_store_s() {
        assert_eq!(check(""), (Some(Retention::default()), Vec::new()));
    }

    #[test]
    fn times_are_bounded_and_ordered() {
        let days = |days: u64| Duration::from_secs(days * 24 * 60 * 60);
        let (read, complaints) = check("[retention]\npayload = \"1d\"\nhistory = \"90d\"");
        let read = read.map(|read| (read.payload, read.history));
        assert_eq!((read, complaints), (Some((days(1), days(90))), Vec::new()));
        let (_, complaints) = check("[retention]\npayload = \"1s\"\nhistory = \"500d\"\naudit = \"450d\"");
        assert_eq!(complaints, ["retention.payload in posthaste.toml: must be 1h to 3650d, not \"1s\""]);
        let (_, complaints) = check("[retention]\npayload = \"60d\"\nhistory = \"40d\"\naudit = \"30d\"");
        assert_eq!(complaints.len(), 2, "{complaints:?}");
    }
}
