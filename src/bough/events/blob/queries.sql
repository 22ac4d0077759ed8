-- Statements about the bytes of inputs that SQLite and Postgres share; see `bough.events.queries`.

-- name: keep
-- Bytes, unless they are here already.
insert into blob (sha256, media_type, size, data) values (:sha256, :media_type, :size, :data) on conflict do nothing;

-- name: use
-- Which event names them.
insert into blob_use (cid, seq, sha256) values (:number, :seq, :sha256) on conflict do nothing;

-- name: is_used
-- Whether an own event of a conversation, in a range, names a digest.
select 1 from blob_use where sha256 = :sha256 and cid = :number and seq >= :lo and seq < :hi limit 1;

-- name: read
-- The bytes of a digest.
select data from blob where sha256 = :sha256;
