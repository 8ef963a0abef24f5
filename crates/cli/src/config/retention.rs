//! How long things are kept, and how the times must stand to each other.

use std::time::Duration;

use posthaste_server::duration;
use posthaste_store::Retention;

use super::layer::{Layers, Setting};

const HOUR: Duration = Duration::from_secs(60 * 60);
/// Ten years: longer is for ever, and nobody means that.
const MAX: Duration = Duration::from_secs(3_650 * 24 * 60 * 60);

/// The times, or one more complaint.
pub(super) fn read(layers: &mut Layers) -> Option<Retention> {
    let payload = layers.get("retention.payload", time);
    let history = layers.get("retention.history", time);
    let journal = layers.get("retention.audit", time);
    let retention = Retention { payload: payload?, history: history?, journal: journal? };
    // What became of a message cannot be told for longer than the trail that proves it is kept.
    if retention.history > retention.journal {
        layers
            .complain("retention.history is longer than retention.audit: the trail outlives what it proves".to_owned());
    }
    if retention.payload > retention.history {
        layers.complain(
            "retention.payload is longer than retention.history: nobody could say what it was for".to_owned(),
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
    fn the_defaults_are_the_store_s_own() {
        assert_eq!(check(""), (Some(Retention::default()), Vec::new()));
    }

    #[test]
    fn times_are_bounded_and_stand_to_each_other() {
        let days = |days: u64| Duration::from_secs(days * 24 * 60 * 60);
        let (read, told) = check("[retention]\npayload = \"1d\"\nhistory = \"90d\"");
        assert_eq!((read.map(|read| (read.payload, read.history)), told), (Some((days(1), days(90))), Vec::new()));
        let (_, told) = check("[retention]\npayload = \"1s\"\nhistory = \"500d\"\naudit = \"450d\"");
        assert_eq!(told, ["retention.payload in posthaste.toml: must be 1h to 3650d, not \"1s\""]);
        let (_, told) = check("[retention]\npayload = \"60d\"\nhistory = \"40d\"\naudit = \"30d\"");
        assert_eq!(told.len(), 2, "{told:?}");
    }
}
