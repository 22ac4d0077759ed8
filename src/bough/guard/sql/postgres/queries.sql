-- Statements about budgets in Postgres' dialect.

-- part: lock
-- The row is locked and its sums are read again, so that two requests cannot take the same remainder.
for update of b
