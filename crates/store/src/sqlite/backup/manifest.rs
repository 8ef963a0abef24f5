//! The manifest of a backup: a few lines of text beside the copy that describe it. It contains no secret.
//!
//! The first line names the version of the format. A newer version is refused, and adding a line takes a new version.

use posthaste_core::Timestamp;
use posthaste_crypto::digest::Digest;
use posthaste_crypto::hex;
use posthaste_crypto::master::MasterKeyId;

/// The manifest's file name in the backup's folder.
pub const MANIFEST: &str = "manifest";
const FORMAT: &str = "posthaste backup 1";

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Manifest {
    pub program: String,
    pub schema: u32,
    pub store: [u8; 16],
    /// The master keys needed to read it, newest first.
    pub master_keys: Vec<MasterKeyId>,
    /// When the backup began: it contains everything acknowledged before.
    pub at: Timestamp,
    pub journal_row: u64,
    pub journal_hash: Digest,
    pub pending: u64,
    pub bytes: u64,
    /// SHA-256 of the copy.
    pub digest: Digest,
}

impl Manifest {
    pub fn to_text(&self) -> String {
        let keys: Vec<String> = self.master_keys.iter().map(ToString::to_string).collect();
        format!(
            "{FORMAT}\nprogram {}\nschema {}\nstore {}\nmaster_keys {}\nat_ms {}\njournal {} {}\npending {}\nbytes \
             {}\nsha256 {}\n",
            self.program,
            self.schema,
            hex::write(&self.store),
            keys.join(" "),
            self.at.as_millis(),
            self.journal_row,
            hex::write(&self.journal_hash),
            self.pending,
            self.bytes,
            hex::write(&self.digest),
        )
    }

    /// Parses a manifest's text. The error completes "the backup cannot be used:".
    pub fn parse(text: &str) -> Result<Self, String> {
        let mut lines = text.lines();
        match lines.next() {
            Some(FORMAT) => {}
            Some(other) if other.starts_with("posthaste backup ") => {
                return Err(format!("its format is {other:?} and this build knows {FORMAT:?}; use the newer build"));
            }
            _ => return Err("its manifest is not one of Posthaste's".to_owned()),
        }
        let mut line = |name: &str| {
            let line = lines.next().and_then(|line| line.strip_prefix(name)?.strip_prefix(' '));
            line.ok_or_else(|| format!("its manifest has no line {name:?} where it should be"))
        };
        let program = line("program")?.to_owned();
        let schema = number(line("schema")?)?;
        let store = bytes_of(line("store")?)?;
        let keys = line("master_keys")?;
        let keys = keys.split(' ').map(|key| u32::from_str_radix(key, 16).map(MasterKeyId::from_raw));
        let master_keys = keys.collect::<Result<_, _>>().map_err(|_| "its manifest names no master key".to_owned())?;
        let at = Timestamp::from_millis(number(line("at_ms")?)?);
        let (row, hash) = line("journal")?.split_once(' ').ok_or("its manifest has no journal")?;
        Ok(Self {
            program,
            schema,
            store,
            master_keys,
            at,
            journal_row: number(row)?,
            journal_hash: bytes_of(hash)?,
            pending: number(line("pending")?)?,
            bytes: number(line("bytes")?)?,
            digest: bytes_of(line("sha256")?)?,
        })
    }
}

fn number<T: std::str::FromStr>(text: &str) -> Result<T, String> {
    text.parse().map_err(|_| format!("its manifest has {text:?} where a number should be"))
}

fn bytes_of<const N: usize>(text: &str) -> Result<[u8; N], String> {
    let bad = || format!("its manifest has {text:?} where {} hexadecimal digits should be", 2 * N);
    hex::read(text).ok_or_else(bad)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_manifest_parses_as_written_and_another_format_is_refused() {
        let manifest = Manifest {
            program: "1.2.3".to_owned(),
            schema: 7,
            store: [1; 16],
            master_keys: vec![MasterKeyId::from_raw(0xab), MasterKeyId::from_raw(u32::MAX)],
            at: Timestamp::from_millis(1_760_000_000_000),
            journal_row: 9,
            journal_hash: [2; 32],
            pending: 3,
            bytes: 4_096,
            digest: [0xfe; 32],
        };
        let text = manifest.to_text();
        assert!(
            text.starts_with("posthaste backup 1\nprogram 1.2.3\n") && text.contains("master_keys 000000ab ffffffff\n")
        );
        assert_eq!(Manifest::parse(&text), Ok(manifest));
        for (bad, says) in [
            ("", "not one of Posthaste's"),
            ("posthaste backup 2\n", "use the newer build"),
            ("posthaste backup 1\nprogram 1\nschema x\n", "where a number should be"),
            ("posthaste backup 1\nprogram 1\n", "no line \"schema\""),
        ] {
            let refused = Manifest::parse(bad).expect_err("it is none");
            assert!(refused.contains(says), "{refused}");
        }
        assert!(Manifest::parse(&text.replace("fefe", "f")).is_err());
    }
}
