-- Statements about the index of messages on SQLite. Keys are JSON arrays of [cid, seq].

-- name: lock
-- One process at a time changes the index: the writer is alone.
select 1;

-- name: collect
-- Let some older messages wait.
insert or ignore into search_queue
select k from (select k, kind from event where k >= :cid << 32 | :seq order by k limit :limit)
where kind in ('UserMessage', 'ModelResponded');

-- name: next_build
-- Where the collection continues; no row at the end.
select k >> 32, k & 4294967295 from event where k >= :cid << 32 | :seq order by k limit 1 offset :limit;

-- name: peek
-- The next messages, with the size of each and whether the index has it already.
select q.k >> 32, q.k & 4294967295, ifnull(length(e.data), 0), exists (select 1 from search_doc d where d.k = q.k)
from search_queue q left join event e on e.k = q.k order by q.k limit :limit;

-- name: take
delete from search_queue where k in (select (value ->> 0) << 32 | (value ->> 1) from json_each(:keys));

-- name: hold
-- Nobody changes these events until the transaction ends: the writer is alone.
select 1 where :keys is not null;

-- name: messages
select e.k >> 32, e.k & 4294967295, e.kind, e.ts, e.data, c.owner
from json_each(:keys) key
cross join event e on e.k = (key.value ->> 0) << 32 | (key.value ->> 1)
join conversation c on c.cid = e.k >> 32;

-- name: add_documents
-- Documents as JSON arrays of [id, cid, seq, part, words].
insert into search_doc (id, k, part)
select value ->> 0, (value ->> 1) << 32 | (value ->> 2), value ->> 3 from json_each(:documents);

-- name: add_words
insert into search_words (rowid, words) select value ->> 0, value ->> 4 from json_each(:documents);

-- name: matching
-- Documents that match, the newest first.
select d.id, d.part, d.k >> 32, d.k & 4294967295, c.id, c.title, c.tags
from search_words w
cross join search_doc d on d.id = w.rowid
cross join conversation c on c.cid = d.k >> 32
where w.search_words match :words and w.rowid >= :oldest and w.rowid < :before
  and not c.deleted and (:any_owner or c.owner is :owner)
  and (:project is null or :project = (select t.project from conversation t where t.cid = ifnull(c.root, c.cid)))
order by w.rowid desc limit :limit;

-- name: matching_newest
-- Not used: the index returns its matches in order.
select 0 where :window is not null;
