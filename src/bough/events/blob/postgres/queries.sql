-- Every statement about the bytes of inputs on Postgres.

-- name: keep
-- Bytes, unless they are here already.
insert into blob (sha256, media_type, size, data) values (%(sha256)s, %(media_type)s, %(size)s, %(data)s) on conflict do nothing;

-- name: use
-- Which event names them.
insert into blob_use (cid, seq, sha256) values (%(number)s, %(seq)s, %(sha256)s) on conflict do nothing;

-- name: read
-- The bytes of a digest.
select data from blob where sha256 = %(sha256)s;
