//! Pauses in force: one row each. Origin, reason and API key of a pause are sealed under the store's own key.

use posthaste_core::{Key, Timestamp};
use posthaste_crypto::seal_context::{SealContext, SealOwner, SealedField, SealedObject};
use rusqlite::Connection;

use super::{Vault, get, pause_columns, prepare, stored_pause_scope};
use crate::journal::pack::{self, Unpack};
use crate::{ApiKeyRef, Pause, PauseScope, StoreError};

pub(super) fn put(conn: &Connection, vault: &Vault, pause: &Pause) -> rusqlite::Result<()> {
    write(conn, pause, seal(vault, pause))
}

/// Puts a pause without an end, origin, reason or API key.
pub(super) fn put_bare(conn: &Connection, scope: PauseScope) -> rusqlite::Result<()> {
    write(conn, &Pause::new(scope, None), None)
}

fn write(conn: &Connection, pause: &Pause, sealed: Option<Vec<u8>>) -> rusqlite::Result<()> {
    let (kind, scope) = pause_columns(pause.scope);
    conn.prepare_cached("INSERT OR REPLACE INTO pause (kind, scope, until_ms, sealed) VALUES (?1, ?2, ?3, ?4)")?
        .execute((kind, scope, pause.until.map(Timestamp::as_millis), sealed))?;
    Ok(())
}

pub(super) fn remove(conn: &Connection, scope: PauseScope) -> rusqlite::Result<()> {
    conn.prepare_cached("DELETE FROM pause WHERE kind = ?1 AND scope = ?2")?.execute(pause_columns(scope))?;
    Ok(())
}

/// Every pause, ordered by scope.
pub(super) fn all(conn: &Connection, vault: &Vault) -> Result<Vec<Pause>, StoreError> {
    let sql = "SELECT kind, scope, until_ms, sealed FROM pause";
    let mut pauses = prepare(conn, "read the pauses", sql)?.read_all([], |row| {
        let scope = stored_pause_scope(get(row, 0)?, get(row, 1)?)?;
        let mut pause = Pause::new(scope, get::<Option<i64>>(row, 2)?.map(Timestamp::from_millis));
        if let Some(sealed) = get::<Option<Vec<u8>>>(row, 3)?
            && open(vault, &mut pause, &sealed).is_none()
        {
            // The pause holds all the same: a changed reason must not cause paused deliveries to be sent.
            tracing::warn!("cannot decrypt the reason of a pause; the pause stays in force");
        }
        Ok(pause)
    })?;
    pauses.sort_unstable_by_key(|pause| pause.scope);
    Ok(pauses)
}

fn context(scope: PauseScope) -> SealContext {
    let (kind, of) = pause_columns(scope);
    SealContext::new(SealOwner::Store, SealedField::PauseSaid, SealedObject::Part(kind.into(), of.cast_unsigned()))
}

fn seal(vault: &Vault, pause: &Pause) -> Option<Vec<u8>> {
    let Pause { scope, origin, reason, by, .. } = pause;
    if origin.is_none() && reason.is_none() && by.is_none() {
        return None;
    }
    let mut plain = vec![u8::from(origin.is_some()) | u8::from(reason.is_some()) << 1 | u8::from(by.is_some()) << 2];
    for text in [origin, reason].into_iter().flatten() {
        pack::bytes(&mut plain, text.as_bytes());
    }
    if let Some(ApiKeyRef { key, made }) = by {
        pack::number(&mut plain, key.raw());
        pack::time(&mut plain, *made);
    }
    Some(vault.own().seal(&context(*scope), &plain))
}

/// Opens the sealed part into `pause`; `None` when it does not open.
fn open(vault: &Vault, pause: &mut Pause, sealed: &[u8]) -> Option<()> {
    let plain = vault.own().open(&context(pause.scope), sealed).ok()?;
    let mut rest = Unpack(plain.get(1..)?);
    let text = |rest: &mut Unpack<'_>| Some(String::from_utf8_lossy(rest.bytes().ok()?).into_owned());
    let (has, mut opened) = (plain[0], Pause::new(pause.scope, pause.until));
    if has & 1 != 0 {
        opened.origin = Some(text(&mut rest)?);
    }
    if has & 2 != 0 {
        opened.reason = Some(text(&mut rest)?);
    }
    if has & 4 != 0 {
        opened.by = Some(ApiKeyRef { key: Key::from_raw(rest.number().ok()?), made: rest.time().ok()? });
    }
    rest.end().ok()?;
    *pause = opened;
    Some(())
}
