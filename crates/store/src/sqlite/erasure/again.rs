//! Applies erasures again, to a restored copy of the data that is older than they are.

use std::sync::Arc;
use std::time::Duration;

use posthaste_core::{TenantId, Timestamp};
use posthaste_crypto::digest::Digest;
use rusqlite::Connection;

use super::{Open, begin, hidden};
use crate::journal::Entries;
use crate::row::Session;
use crate::sqlite::Sqlite;
use crate::sqlite::column::{get, stored_key};
use crate::sqlite::erasures_file::ErasureLine;
use crate::sqlite::statement::prepare;
use crate::sqlite::vault::{self, Vault};
use crate::{Erasures, StoreError};

/// How long another program's read may delay the end of an erasure; after that, the next start of the server finishes
/// it.
const WAIT_MAX: Duration = Duration::from_secs(60);
const WAIT: Duration = Duration::from_millis(20);

/// The result of applying a list of erasures, in numbers of its lines.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ErasedAgain {
    /// Applied: their keys and rows are deleted.
    pub applied: u64,
    /// Not needed: the copy has no data of theirs, or had that erasure already.
    pub known: u64,
    /// Refused: of another store, incomplete or altered.
    pub refused: u64,
}

impl Sqlite {
    /// Applies a list of erasures to a store that is not being served, and finishes all erasures.
    pub async fn erase_again(&self, session: Session, list: &str, at: Timestamp) -> Result<ErasedAgain, StoreError> {
        let mut again = ErasedAgain::default();
        for text in list.lines().filter(|text| !text.is_empty() && !text.starts_with('#')) {
            let line =
                ErasureLine::parse(text, &self.shared.vault.erasures).filter(|line| line.store == self.own.store_id);
            let Some(line) = line else {
                again.refused += 1;
                continue;
            };
            let vault = Arc::clone(&self.shared.vault);
            let run = move |conn: &Connection, entries: &mut Entries| apply(conn, &vault, &line, at, entries);
            match self.noted_work(session, 1, run).await? {
                Some(open) => {
                    self.list(&open).await?;
                    again.applied += 1;
                }
                None => again.known += 1,
            }
        }
        self.finish_erasures(session, at).await?;
        Ok(again)
    }

    async fn finish_erasures(&self, session: Session, at: Timestamp) -> Result<(), StoreError> {
        let mut waited = Duration::ZERO;
        while let Some(next) = self.unfinished_erasures(1).await?.first() {
            let step = self.erase_step(session, next.number, at, Vec::new()).await?;
            if step.is_some_and(|step| step.waits) {
                if waited >= WAIT_MAX {
                    tracing::warn!(
                        "an erasure is not finished, since another program reads the file; the next start finishes it"
                    );
                    return Ok(());
                }
                waited += WAIT;
                tokio::time::sleep(WAIT).await;
            }
        }
        Ok(())
    }
}

/// Applies one erasure, unless the data had it already.
fn apply(
    conn: &Connection,
    vault: &Vault,
    line: &ErasureLine,
    at: Timestamp,
    entries: &mut Entries,
) -> Result<Option<Open>, StoreError> {
    if is_known(conn, line)? {
        return Ok(None);
    }
    let Some((tenant, subject)) = whom(conn, vault, &line.hidden)? else { return Ok(None) };
    begin(conn, vault, (tenant, subject.as_ref()), (at, None), entries).map(Some)
}

/// Whether the data had this erasure already: it is recorded, or retention has deleted everything of its time.
fn is_known(conn: &Connection, line: &ErasureLine) -> Result<bool, StoreError> {
    let sql = "SELECT 1 FROM erasure WHERE hidden = ?1 AND at_ms >= ?2
       UNION ALL
       SELECT 1 FROM (SELECT number, at_ms FROM journal ORDER BY number LIMIT 1) WHERE number > 1 AND at_ms > ?2";
    prepare(conn, "check whether an erasure is known", sql)?.exists((line.hidden, line.at.as_millis()))
}

/// The tenant or subject with this keyed hash, among those that have a key.
fn whom(conn: &Connection, vault: &Vault, wanted: &Digest) -> Result<Option<(TenantId, Option<Digest>)>, StoreError> {
    let sql = "SELECT tenant, subject FROM data_key WHERE tenant >= 0";
    let mut sql = prepare(conn, "find the subject of an erasure", sql)?;
    let mut rows = sql.query([])?;
    while let Some(row) = rows.next()? {
        let tenant = TenantId(stored_key(get(row, 0)?)?);
        let subject = vault::stored_subject(get(row, 1)?)?;
        if hidden(vault, tenant, subject.as_ref()) == *wanted {
            return Ok(Some((tenant, subject)));
        }
    }
    Ok(None)
}
