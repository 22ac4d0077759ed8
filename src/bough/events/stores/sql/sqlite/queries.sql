-- Statements of the store that only SQLite has; the others are in ../queries.sql.
-- What was forked is mostly what owns the last shared event: `forked_from` is null then, and its index is left alone.

-- Parts of statements, put in wherever a statement names one in braces.

-- part: digest
-- What `digest` has to be: of everything in a row but what appends and leases change.
digest_of(c.id, c.parent, c.base, c.forked_from, c.forked_at, c.root, c.deleted, c.created, c.imported, c.erased,
          cast(c.project as blob), cast(c.status as blob), cast(c.owner as blob), cast(c.title as blob),
          cast(c.tags as blob), cast(c.config as blob), cast(c.lineage as blob))

-- part: end_digest
-- What `end_digest` has to be: of what appends and leases change.
digest_of(c.id, c.head, ifnull(c.updated, c.created), c.generation, cast(c.counts as blob), c.cost_nanos)

-- part: named
-- By its id, which is then read from the row itself, where damage may be, and not from the index.
c.cid = (select x.cid from conversation x where x.id = :id)

-- part: complete
-- Whether a row is what was written, and so are the ids it names: the index has them, too.
({intact} and (select x.cid from conversation x where x.id = r.id) is ifnull(c.root, c.cid)
 and (select x.cid from conversation x where x.id = p.id) is c.parent
 and (select x.cid from conversation x where x.id = f.id) is ifnull(c.forked_from, c.parent))

-- part: whole
-- The columns of a whole record, with the ids behind its numbers.
c.id, r.id, p.id, c.base, c.head, f.id, ifnull(c.forked_at, c.base),
(select e.id from event e where e.k =
  (case when ifnull(c.forked_at, c.base) > c.base then c.cid else c.parent end << 32)
  | (ifnull(c.forked_at, c.base) - 1) and e.k = (select x.k from event x where x.id = e.id)),
c.generation, c.deleted, c.created, ifnull(c.updated, c.created), c.status, c.owner, c.title, c.tags,
c.config, c.lineage, c.cid, c.project, c.imported,
c.counts, c.cost_nanos, {complete}

-- part: related
-- The conversations that a record names.
left join conversation r on r.cid = ifnull(c.root, c.cid)
left join conversation p on p.cid = c.parent
left join conversation f on f.cid = ifnull(c.forked_from, c.parent)

-- part: fits
-- Which events of one range of keys a choice lets through.
k >= :lo and k < :hi and (:kinds is null or kind in (select value from json_each(:kinds)))
and (:after is null or ts >= :after) and (:before is null or ts < :before)

-- name: row_of
-- What a write has to know about a conversation.
select cid, parent, base, head, ifnull(forked_from, parent), forked_at, root, generation, deleted, lineage, {intact}
from conversation c where {named};

-- name: insert_conversation
insert into conversation (id, parent, base, head, forked_from, forked_at, root, generation, deleted, created, updated,
                          status, owner, title, tags, config, lineage, project, imported,
                          counts, cost_nanos, erased, digest, end_digest)
with c (id, parent, base, head, forked_from, forked_at, root, generation, deleted, created, updated, status, owner, title,
        tags, config, lineage, project, imported, counts, cost_nanos, erased)
  as (values (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, null))
select c.*, {digest}, {end_digest} from c;

-- name: insert_event
insert into event (k, id, kind, ts, data, digest) values (?, ?, ?, ?, ?, ?);

-- name: place
-- What an append has to know about a conversation.
select cid, head, generation, {intact} from conversation c where {named} and not deleted;

-- name: source
-- What a fork has to know about the conversation it is made of.
select c.cid, c.base, c.head, r.cid, r.id, {intact}
from conversation c join conversation r on r.cid = ifnull(c.root, c.cid) where {named} and not c.deleted;

-- name: event_id
select id from event where k = ?;

-- name: advance
-- The head and the usage after appends; time never goes back.
update conversation
set head = ?1, updated = max(ifnull(updated, created), ?2), counts = add_counts(counts, ?4, ?5, ?6),
    cost_nanos = cost_nanos + ?7,
    end_digest = digest_of(id, ?1, max(ifnull(updated, created), ?2), generation,
                           cast(add_counts(counts, ?4, ?5, ?6) as blob), cost_nanos + ?7)
where cid = ?3;

-- name: seal
-- The digests of a row that was changed; what changes one has found it intact before.
update conversation as c set digest = {digest}, end_digest = {end_digest} where cid = :cid;

-- name: record
-- A whole record with the ids behind its numbers; deleted ones too.
select {whole} from conversation c {related} where {named};

-- name: matching
-- Which records a filter lets through; a part of other statements.
(:include_deleted or not c.deleted)
  and (:statuses is null or ifnull(c.status, 'idle') in (select value from json_each(:statuses)))
  and {owner}
  and (:ids is null or c.id in (select unhex_text(value) from json_each(:ids)))
  and (:text is null or instr(lower_text(c.title), :text))
  and (:agent is null or case when {intact} then c.config ->> '$.agent' = :agent end)
  and (:root is null or ifnull(c.root, c.cid) = (select t.cid from conversation t where t.id = :root))
  and (:project is null
       or :project = (select t.project from conversation t where t.cid = ifnull(c.root, c.cid)))
  and (:folder is null or instr(c.config, :folder) or instr(c.config, :below_folder)
       or exists (select 1 from conversation t where t.cid = c.root
                  and (instr(t.config, :folder) or instr(t.config, :below_folder))))
  and (:tags is null or case when {intact} then not exists (
        select 1 from json_each(:tags) w
        where not exists (select 1 from json_each(c.tags) t where t.key = w.key and t.value = w.value)) end)
  and (:created_after is null or c.created >= :created_after)
  and (:created_before is null or c.created < :created_before)
  and (:updated_after is null or ifnull(c.updated, c.created) >= :updated_after)
  and (:updated_before is null or ifnull(c.updated, c.created) < :updated_before)
  and (:min_nanos is null or c.cost_nanos >= :min_nanos);

-- name: children
select f.id from conversation f
where (f.forked_from = (select cid from conversation where id = :id)
       or f.forked_from is null and f.parent = (select cid from conversation where id = :id)) and not f.deleted
order by f.cid;

-- name: named
-- Conversations whose id starts or ends with the digits.
select id from conversation
where not deleted and (hex(id) like :digits || '%' or hex(id) like '%' || :digits)
order by cid limit 6;

-- name: lineage
-- The ranges of a log, the newest first; the first row is the conversation itself, empty or not. The limit keeps it
-- from climbing on.
with recursive part (cid, id, lo, hi, parent, deleted, intact) as (
  select cid, id, base, head, parent, deleted, {intact} from conversation c where {named}
  union all
  select c.cid, c.id, c.base, part.lo, c.parent, c.deleted, {intact}
  from part join conversation c on c.cid = part.parent
  limit :most)
select cid, id, lo, hi, deleted, intact from part;

-- name: page
-- Events of one owner, oldest first.
select k & 4294967295, id, kind, ts, data, digest from event where k >= ? and k < ? order by k;

-- name: page_reverse
-- Events of one owner, newest first.
select k & 4294967295, id, kind, ts, data, digest from event where k >= ? and k < ? order by k desc;

-- name: pages
-- Events of several ranges of keys: the join keeps the order of the ranges, so nothing has to be sorted (or held).
select k & 4294967295, event.id, kind, ts, data, digest
from json_each(?) part cross join event on k >= part.value ->> 0 and k < part.value ->> 1;

-- name: chosen
-- Events of one range of keys that a filter lets through, oldest first.
select k & 4294967295, event.id, kind, ts, data, digest from event
where {fits}
order by k;

-- name: chosen_reverse
-- The same, newest first.
select k & 4294967295, event.id, kind, ts, data, digest from event
where {fits}
order by k desc;

-- name: ids
-- Places, ids and kinds of one range of keys.
select k & 4294967295, id, kind from event where k >= :lo and k < :hi order by k;

-- name: every
-- Events of a kind, whoever owns them, from a place on.
select k >> 32, k & 4294967295, id, kind, ts, data, digest from event
where k > :cid << 32 | :seq and kind = '{kind}' order by k limit :limit;

-- name: locate
select k >> 32, k & 4294967295, (select c.id from conversation c where c.cid = k >> 32) from event where id = :id;

-- name: heads
-- Where the conversations that someone watches stand.
select id, head from conversation where not deleted and id in (select unhex_text(value) from json_each('["' || replace(:ids, ',', '","') || '"]'));

-- name: lease
-- Who holds a lease, and until when; one of another start of the machine is over.
select owner, case when boot = :boot then expires else 0 end from lease where cid = :cid;

-- name: set_lease
insert into lease (cid, owner, boot, expires) values (:cid, :owner, :boot, :expires)
on conflict (cid) do update set owner = excluded.owner, boot = excluded.boot, expires = excluded.expires;

-- name: drop_lease
-- The lease goes only if nobody took it over.
delete from lease where cid = (select cid from conversation where id = :id and generation = :generation) and owner = :owner;

-- name: bury
-- A tombstone: its events may still be shared, everything that describes it goes.
update conversation
set deleted = 1, status = 'deleting', owner = null, title = null, tags = null, config = null, lineage = null,
    counts = null, cost_nanos = 0
where cid = :cid;

-- name: tombstone_row
-- What deciding about a tombstone's remains takes: its own numbers, the furthest cut into it, whether a fork names it.
select c.parent, c.base, c.head, ifnull(c.forked_from, c.parent), c.deleted,
       (select max(p.base) from conversation p where p.parent = c.cid),
       exists (select 1 from conversation f
               where f.forked_from = c.cid or f.forked_from is null and f.parent = c.cid)
from conversation c where c.cid = :cid;

-- name: drop_events
delete from event where k >= :cid << 32 | :lo and k < :cid << 32 | :hi;

-- name: trim
-- A tombstone keeps what forks reach, and no claim on its own parent once nothing reaches through it.
update conversation set head = :head, forked_from = ifnull(forked_from, parent), parent = :parent where cid = :cid;

-- name: forks_of
-- Every living fork below a conversation, forks of forks too.
with recursive below (cid) as (
  select :cid
  union
  select f.cid from below join conversation f
    on f.forked_from = below.cid or f.forked_from is null and f.parent = below.cid)
select f.id from conversation f join below on f.cid = below.cid
where not f.deleted and f.cid <> :cid order by f.cid desc;

-- name: payloads
select k & 4294967295, id, kind, ts, data from event
where k >= :cid << 32 | :lo and k < :cid << 32 | :hi order by k limit 256;

-- name: set_payload
update event set data = :data, digest = :digest where k = :cid << 32 | :seq;

-- name: ancestry
-- Everything a conversation descends from, by events or by name; numbers rise from ancestor to descendant.
with recursive up (cid) as (
  select cid from conversation where id = :id
  union
  select case way.n when 0 then c.parent when 1 then c.forked_from else c.root end
  from up join conversation c on c.cid = up.cid join (select 0 as n union all select 1 union all select 2) way)
select c.id from conversation c join up on up.cid = c.cid where c.id <> :id order by c.cid;

-- name: span
-- Events with their digests.
select k & 4294967295, e.id, kind, ts, data, e.digest from conversation c, event e
where c.id = :id and k >= c.cid << 32 | :lo and k < c.cid << 32 | :hi order by k;

-- name: revive
-- An imported continuation; a tombstone comes back to life.
update conversation set deleted = 0, updated = max(ifnull(updated, created), :updated), config = ifnull(:config, config),
                        lineage = ifnull(:lineage, lineage)
where cid = :cid;

-- name: count_imported
-- Where the imported events of a log end; null where there is no such log.
with recursive part (cid, parent, lo, hi, imported) as (
  select cid, parent, base, head, imported from conversation where id = :id and not deleted
  union all
  select c.cid, c.parent, c.base, part.lo, c.imported from part join conversation c on c.cid = part.parent)
select max(case when imported > lo and hi > lo then min(imported, hi) else 0 end) from part;

-- name: size
-- Bytes of payload of some own events.
select ifnull(sum(length(data)), 0) from event where k >= :cid << 32 | :lo and k < :cid << 32 | :hi;

-- name: count_statements
-- For each table that a receipt counts, if it exists, the statement that counts its rows.
select name, printf('select count(*) from "%w"', name) from sqlite_master
where type = 'table' and name in ('blob', 'snapshot', 'task');

-- name: add_usage
-- What imported events have used.
update conversation set counts = add_counts(counts, :requests, :inputs, :outputs), cost_nanos = cost_nanos + :costs
where cid = :cid;
