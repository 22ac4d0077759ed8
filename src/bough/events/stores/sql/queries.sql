-- Statements of the store that SQLite and Postgres share; see `bough.events.queries`.

-- part: intact
-- Whether a row is what was written.
(c.digest is not distinct from {digest} and c.end_digest is not distinct from {end_digest})

-- name: damaged
-- Rows that are not what was written, or name one that is gone.
select uuid_send(c.id) from conversation c {related} where not {complete} order by c.cid;

-- name: set_status
update conversation set status = nullif(:status, 'idle') where cid = :cid;

-- name: set_title
update conversation set title = :title where cid = :cid;

-- name: set_tags
update conversation set tags = :tags where cid = :cid;

-- name: count
select count(*) from conversation c where {matching};

-- name: records
-- Records that match, in an order, from a place on.
with chosen as materialized (
  select c.* from conversation c
  where {matching}
    and (:place_value::bigint is null or ({value}, c.cid) {beyond} (:place_value, :place_cid::bigint))
  order by {value} {direction}, c.cid {direction}
  limit :limit
)
select {whole}, {value} from chosen c {related}
order by {value} {direction}, c.cid {direction};

-- name: scan
-- Records by number, tombstones too.
select {whole} from conversation c {related}
where c.cid > :after order by c.cid limit :limit;

-- name: set_erased
-- When payloads were scrubbed, for triggers of tables beside the log.
update conversation set erased = :erased where cid = :cid;

-- name: readers
-- Living conversations whose logs have own events of a conversation.
with recursive below (cid) as (
  select :cid::bigint
  union
  select c.cid from below join conversation c on c.parent = below.cid)
select uuid_send(c.id) from conversation c join below on c.cid = below.cid
where not c.deleted and c.cid <> :cid order by c.cid;

-- name: latest
select uuid_send(id) from conversation where not deleted order by coalesce(updated, created) desc, cid desc limit 1;

-- name: raise_generation
update conversation set generation = generation + 1 where cid = :cid;

-- name: forget_lease
delete from lease where cid = :cid;

-- name: drop_conversation
delete from conversation where cid = :cid;

-- name: count_events
select count(*) from event;

-- name: number
select cid from conversation where id = :id;

-- name: beside_version
-- The schema of a package's tables beside the log.
select version from beside where package = :package;

-- name: set_beside_version
insert into beside (package, version) values (:package, :version)
on conflict (package) do update set version = excluded.version;

-- name: set_imported
-- Up to where its own events came from elsewhere.
update conversation set imported = :imported where cid = :cid;
