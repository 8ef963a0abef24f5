//! Cached statements whose errors say what was being done.

use rusqlite::types::FromSql;
use rusqlite::{CachedStatement, Connection, Error, OptionalExtension, Params, Row, Rows};

use super::failed;
use crate::StoreError;

/// A statement, and the operation that its errors name.
pub(super) struct PreparedSql<'c> {
    sql: CachedStatement<'c>,
    doing: &'static str,
}

/// Takes a statement from the connection's cache, or prepares it.
pub(super) fn prepare<'c>(conn: &'c Connection, doing: &'static str, sql: &str) -> Result<PreparedSql<'c>, StoreError> {
    Ok(PreparedSql { sql: conn.prepare_cached(sql).map_err(failed(doing))?, doing })
}

impl PreparedSql<'_> {
    /// Returns the number of rows that were changed.
    pub(super) fn execute(&mut self, params: impl Params) -> Result<usize, StoreError> {
        self.sql.execute(params).map_err(failed(self.doing))
    }

    pub(super) fn exists(&mut self, params: impl Params) -> Result<bool, StoreError> {
        self.sql.exists(params).map_err(failed(self.doing))
    }

    /// The first column of the first row; an error if there is no row.
    pub(super) fn value<T: FromSql>(&mut self, params: impl Params) -> Result<T, StoreError> {
        self.sql.query_row(params, |row| row.get(0)).map_err(failed(self.doing))
    }

    /// The first column of the first row, if there is a row.
    pub(super) fn find<T: FromSql>(&mut self, params: impl Params) -> Result<Option<T>, StoreError> {
        self.sql.query_row(params, |row| row.get(0)).optional().map_err(failed(self.doing))
    }

    /// The columns of the first row, if there is a row.
    pub(super) fn columns<T>(&mut self, params: impl Params) -> Result<Option<T>, StoreError>
    where
        T: for<'r> TryFrom<&'r Row<'r>, Error = Error>,
    {
        self.sql.query_row(params, |row| T::try_from(row)).optional().map_err(failed(self.doing))
    }

    /// The columns of every row.
    pub(super) fn all<T>(&mut self, params: impl Params) -> Result<Vec<T>, StoreError>
    where
        T: for<'r> TryFrom<&'r Row<'r>, Error = Error>,
    {
        let rows = self.sql.query_map(params, |row| T::try_from(row));
        rows.and_then(Iterator::collect).map_err(failed(self.doing))
    }

    /// Reads the first row, if there is a row.
    pub(super) fn read<T>(
        &mut self,
        params: impl Params,
        read: impl FnOnce(&Row<'_>) -> Result<T, StoreError>,
    ) -> Result<Option<T>, StoreError> {
        self.query(params)?.next()?.map(read).transpose()
    }

    /// Reads every row.
    pub(super) fn read_all<T>(
        &mut self,
        params: impl Params,
        read: impl Fn(&Row<'_>) -> Result<T, StoreError>,
    ) -> Result<Vec<T>, StoreError> {
        self.read_some(params, usize::MAX, |row| read(row).map(Some))
    }

    /// The first rows for which `read` returns something, at most `limit`.
    pub(super) fn read_some<T>(
        &mut self,
        params: impl Params,
        limit: usize,
        read: impl Fn(&Row<'_>) -> Result<Option<T>, StoreError>,
    ) -> Result<Vec<T>, StoreError> {
        let mut rows = self.query(params)?;
        let mut found = Vec::new();
        while found.len() < limit
            && let Some(row) = rows.next()?
        {
            found.extend(read(row)?);
        }
        Ok(found)
    }

    pub(super) fn query(&mut self, params: impl Params) -> Result<SqlRows<'_>, StoreError> {
        Ok(SqlRows { rows: self.sql.query(params).map_err(failed(self.doing))?, doing: self.doing })
    }
}

/// The rows of a query, one after the other.
pub(super) struct SqlRows<'s> {
    rows: Rows<'s>,
    doing: &'static str,
}

impl<'s> SqlRows<'s> {
    pub(super) fn next(&mut self) -> Result<Option<&Row<'s>>, StoreError> {
        self.rows.next().map_err(failed(self.doing))
    }
}
