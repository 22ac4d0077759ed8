-- Statements about budgets in Postgres' dialect.

-- part: lock
-- The row is locked and its sums are read again, so that two requests cannot take the same remainder.
for update of b

-- part: lock_first
-- Rows of `budget` are locked before those of `budget_member`, and in one order, as `reserve` locks them: otherwise two
-- transactions could wait for each other. The count locks all of them before the first member is changed.
and (select count(*) from (select 1 from budget where id in (
       select budget from budget_member where conversation = %(conversation)s) order by id for update) locked) >= 0
