-- Statements about the index of messages on Postgres. See sqlite/queries.sql.

-- name: lock
-- One process at a time changes the index.
select pg_advisory_xact_lock(hashtext('bough search ' || current_schema()));

-- name: collect
insert into search_queue (cid, seq)
select cid, seq from (
  select cid, seq, kind from event where (cid, seq) >= (%(cid)s::bigint, %(seq)s::bigint)
  order by cid, seq limit %(limit)s) e
where kind in ('UserMessage', 'ModelResponded')
on conflict do nothing;

-- name: next_build
select cid, seq from event where (cid, seq) >= (%(cid)s::bigint, %(seq)s::bigint)
order by cid, seq limit 1 offset %(limit)s;

-- name: peek
select q.cid, q.seq, coalesce(length(e.data), 0),
       exists (select 1 from search_doc d where d.cid = q.cid and d.seq = q.seq)
from search_queue q left join event e on e.cid = q.cid and e.seq = q.seq
order by q.cid, q.seq limit %(limit)s;

-- name: take
delete from search_queue q using json_array_elements(%(keys)s::json) key
where q.cid = (key.value ->> 0)::bigint and q.seq = (key.value ->> 1)::bigint;

-- name: hold
-- An erasure of one of these waits for the end of the transaction, and then deletes its words.
select 1 from event e
join json_array_elements(%(keys)s::json) key
  on e.cid = (key.value ->> 0)::bigint and e.seq = (key.value ->> 1)::bigint
order by e.cid, e.seq for share of e;

-- name: messages
select e.cid, e.seq, e.kind, e.ts, e.data, c.owner
from json_array_elements(%(keys)s::json) key
join event e on e.cid = (key.value ->> 0)::bigint and e.seq = (key.value ->> 1)::bigint
join conversation c on c.cid = e.cid;

-- name: add_documents
insert into search_doc (id, cid, seq, part, words)
select (document.value ->> 0)::bigint, (document.value ->> 1)::bigint, (document.value ->> 2)::bigint,
       (document.value ->> 3)::int, (document.value ->> 4)::tsvector
from json_array_elements(%(documents)s::json) document;

-- name: add_words
-- They are a column of the document.
select 1 where %(documents)s::text is not null;

-- name: matching
select d.id, d.part, d.cid, d.seq, c.id, c.title, c.tags
from search_doc d
join conversation c on c.cid = d.cid
where d.words @@ %(words)s::tsquery and d.id >= %(oldest)s and d.id < %(before)s
  and not c.deleted and (%(any_owner)s or c.owner is not distinct from %(owner)s)
  and (%(project)s::text is null
       or %(project)s = (select t.project from conversation t where t.cid = coalesce(c.root, c.cid)))
order by d.id desc limit %(limit)s;

-- name: matching_newest
-- Documents that match among some of the newest, the newest first. The last row has where these begin, 0 for the end:
-- the index would find all matches of a frequent word, and sort them.
with newest as materialized (
  select id, part, cid, seq, words from search_doc where id >= %(oldest)s and id < %(before)s
  order by id desc limit %(window)s)
select d.id, d.part, d.cid, d.seq, c.id, c.title, c.tags
from newest d
join conversation c on c.cid = d.cid
where d.words @@ %(words)s::tsquery
  and not c.deleted and (%(any_owner)s or c.owner is not distinct from %(owner)s)
  and (%(project)s::text is null
       or %(project)s = (select t.project from conversation t where t.cid = coalesce(c.root, c.cid)))
union all
select case when count(*) = %(window)s then min(id) else 0 end, null, null, null, null, null, null from newest
order by 1 desc, 2 nulls last;
