//! Clears bytes that page splits leave behind. When SQLite moves rows of a page to another one, their bytes stay in the
//! page's gap, the unused space between its list of rows and the first of them; `secure_delete` does not clear it. A
//! row that is erased later may have a copy of its ciphertext in such a gap.
//!
//! A scrub goes through the pages of the file and overwrites those gaps with zeros, page by page, through SQLite's own
//! cache. Invariant: only bytes that SQLite does not use are changed.

use rusqlite::Connection;

use super::{failed, prepare};
use crate::StoreError;

/// Pages that one call of [`find`] reads: some 32 MiB.
pub(super) const LOOKED: u32 = 4_096;
/// Pages that one commit changes at most: 2 MiB.
pub(super) const CLEARED: usize = 256;

const READ_PAGE: &str = "SELECT data FROM sqlite_dbpage WHERE pgno = ?1";

pub(super) struct DirtyPages {
    /// Pages whose gap has bytes other than zero.
    pub(super) pages: Vec<u32>,
    /// The page after which to continue; `None` at the end of the file.
    pub(super) next: Option<u32>,
}

/// Finds pages whose gap has bytes other than zero, after page `behind`.
pub(super) fn find(conn: &Connection, behind: u32) -> Result<DirtyPages, StoreError> {
    let doing = "find gaps of pages to clear";
    let count: u32 = prepare(conn, doing, "PRAGMA page_count")?.value([])?;
    let mut sql = prepare(conn, doing, READ_PAGE)?;
    let mut pages = Vec::new();
    let last = behind.saturating_add(LOOKED).min(count);
    for page in behind.saturating_add(1)..=last {
        if pages.len() == CLEARED {
            return Ok(DirtyPages { pages, next: Some(page - 1) });
        }
        let gap = sql.read([page], |row| {
            let data = row.get_ref(0).and_then(|data| Ok(data.as_blob()?)).map_err(failed(doing))?;
            Ok(dirty_gap(page, data))
        })?;
        pages.extend(gap.flatten().map(|_| page));
    }
    Ok(DirtyPages { pages, next: (last < count).then_some(last) })
}

/// Clears the gaps of these pages. Each gap is computed again, since the page may have changed.
pub(super) fn clear(conn: &Connection, pages: &[u32]) -> Result<(), StoreError> {
    let doing = "clear gaps of pages";
    let mut read = prepare(conn, doing, READ_PAGE)?;
    let mut write = prepare(conn, doing, "UPDATE sqlite_dbpage SET data = ?2 WHERE pgno = ?1")?;
    for page in pages {
        let Some(mut data): Option<Vec<u8>> = read.find([page])? else { continue };
        let Some(gap) = dirty_gap(*page, &data) else { continue };
        data[gap].fill(0);
        write.execute((page, data))?;
    }
    Ok(())
}

/// The gap of a page if it has bytes other than zero.
fn dirty_gap(page: u32, data: &[u8]) -> Option<std::ops::Range<usize>> {
    gap(page, data).filter(|gap| data[gap.clone()].iter().any(|byte| *byte != 0))
}

/// The gap of a b-tree page, between the list of its cells and the first of them; `None` for any other page, and for
/// one whose header is not valid.
fn gap(page: u32, data: &[u8]) -> Option<std::ops::Range<usize>> {
    if is_map(page, data.len()) {
        return None;
    }
    // The first page begins with the file's header.
    let head = if page == 1 { 100 } else { 0 };
    // A page that is not of a b-tree begins with the number of another page. Its first byte could be one of these only
    // in a file of at least 256 GiB.
    let pointers = match data.get(head)? {
        2 | 5 => 12,
        10 | 13 => 8,
        _ => return None,
    };
    let number = |at: usize| Some(usize::from(u16::from_be_bytes([*data.get(at)?, *data.get(at + 1)?])));
    let from = head + pointers + 2 * number(head + 3)?;
    let to = match number(head + 5)? {
        0 => 65_536,
        first => first,
    };
    (from <= to && to <= data.len()).then_some(from..to)
}

/// Whether a page is one of SQLite's pointer maps: the second page, and then one after each run of pages that a map has
/// room for.
fn is_map(page: u32, size: usize) -> bool {
    // SQLite does not use the page with its lock bytes; a map that would be there is on the next page.
    let locked = u32::try_from((1 << 30) / size + 1).unwrap_or(u32::MAX);
    let every = u32::try_from(size / 5 + 1).unwrap_or(u32::MAX);
    if page < 2 {
        return false;
    }
    let map = (page - 2) / every * every + 2;
    page == map || (map == locked && page == map + 1)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A file with the settings of the store, its pages filled and split many times; some rows are deleted at the end.
    fn filled() -> (tempfile::TempDir, Connection) {
        let folder = tempfile::tempdir().expect("a temporary folder");
        let conn = Connection::open(folder.path().join("some.db")).expect("a file");
        conn.execute_batch(
            "PRAGMA page_size = 8192; PRAGMA auto_vacuum = INCREMENTAL; PRAGMA journal_mode = WAL;
             PRAGMA secure_delete = ON;
             CREATE TABLE some (id INTEGER PRIMARY KEY, text TEXT);
             CREATE TABLE keyed (key TEXT PRIMARY KEY, id INTEGER) WITHOUT ROWID;",
        )
        .expect("a fresh file");
        conn.execute_batch("BEGIN").expect("one transaction is quick");
        for n in 0_i64..1_000 {
            // Out of order, so that pages split in the middle.
            let id = n * 7_919 % 1_009;
            let text = format!("canary {id:05} {}", "x".repeat(usize::try_from(id % 900).unwrap_or(0)));
            conn.execute("INSERT INTO some VALUES (?1, ?2)", (id, &text)).expect("it is put");
            conn.execute("INSERT INTO keyed VALUES (?1, ?2)", (format!("{:05} {text}", n * 31 % 1_000), id))
                .expect("put");
        }
        conn.execute_batch("DELETE FROM some WHERE id % 3 = 0; DELETE FROM keyed WHERE id % 3 = 0; COMMIT")
            .expect("some go");
        (folder, conn)
    }

    fn scrub(conn: &Connection) -> usize {
        let (mut behind, mut cleared) = (Some(0), 0);
        while let Some(from) = behind {
            let found = find(conn, from).expect("it reads");
            clear(conn, &found.pages).expect("it writes");
            cleared += found.pages.len();
            behind = found.next;
        }
        cleared
    }

    /// How many of the deleted rows still have bytes in the file.
    fn left(folder: &tempfile::TempDir, conn: &Connection) -> usize {
        conn.query_row("PRAGMA wal_checkpoint(TRUNCATE)", [], |_| Ok(())).expect("the log is emptied");
        let bytes = std::fs::read(folder.path().join("some.db")).expect("the file");
        let text = String::from_utf8_lossy(&bytes);
        (0..1_009).filter(|id| id % 3 == 0).filter(|id| text.contains(&format!("canary {id:05}"))).count()
    }

    #[test]
    fn scrub_clears_copies_of_deleted_rows_and_changes_no_other_row() {
        let (folder, conn) = filled();
        let sums = "SELECT (SELECT sum(id) + sum(length(text)) FROM some), (SELECT sum(id) + count(*) FROM keyed)";
        let read = || conn.query_row(sums, [], |row| Ok((row.get::<_, i64>(0)?, row.get::<_, i64>(1)?)));
        let before = read().expect("it reads");
        assert!(left(&folder, &conn) > 0, "secure_delete alone leaves some; otherwise this module is not needed");
        assert!(scrub(&conn) > 0);
        assert_eq!(left(&folder, &conn), 0);
        assert_eq!(read().expect("it reads"), before);
        let sound: String = conn.query_row("PRAGMA integrity_check", [], |row| row.get(0)).expect("it is checked");
        assert_eq!(sound, "ok");
        assert_eq!(scrub(&conn), 0, "nothing is left to do");
    }

    #[test]
    fn pointer_maps_are_on_the_pages_where_sqlite_puts_them() {
        assert!(is_map(2, 8_192) && !is_map(1, 8_192) && !is_map(3, 8_192));
        let every = 8_192 / 5 + 1;
        assert!(is_map(2 + every, 8_192) && !is_map(1 + every, 8_192));
    }
}
