-- Statements about budgets in SQLite's dialect.

-- part: lock
-- SQLite has a single writer.

-- part: lock_first
-- SQLite has a single writer.
