-- Statements about the index of messages that SQLite and Postgres share; see `bough.events.queries`.

-- name: pending
-- Whether messages may be missing in the index.
select exists (select 1 from search_build) or exists (select 1 from search_queue);

-- name: waiting
-- How many messages wait for the index.
select count(*) from search_queue;

-- name: build
-- Where the collection of older messages has come to; no row once it is complete.
select cid, seq from search_build;

-- name: advance_build
update search_build set cid = :cid, seq = :seq;

-- name: end_build
delete from search_build;

-- name: last
-- The highest id in each of some moments.
select t.value::bigint,
       (select max(d.id) from search_doc d
        where d.id >= t.value::bigint << 10 and d.id < (t.value::bigint + 1) << 10)
from json_array_elements_text(:times::json) t;
