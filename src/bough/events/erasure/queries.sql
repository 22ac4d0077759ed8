-- Statements about receipts of erasures that SQLite and Postgres share; see `bough.events.queries`.

-- name: put
insert into erasure (id, receipt) values (:id, :receipt) on conflict (id) do update set receipt = excluded.receipt;

-- name: read
select receipt from erasure where id = :id;
