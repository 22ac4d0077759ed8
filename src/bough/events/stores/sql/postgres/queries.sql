-- Statements of the store that only Postgres has; the others are in ../queries.sql.

-- Parts of statements, put in wherever a statement names one in braces.

-- part: digest
-- What `digest` has to be: of everything in a row but what appends and leases change.
digest_of(row(c.id, c.parent, c.base, c.forked_from, c.forked_at, c.root, c.deleted, c.created, c.imported, c.erased,
              c.project, c.status, c.owner, c.title, c.tags, c.config, c.lineage)::text)

-- part: end_digest
-- What `end_digest` has to be: of what appends and leases change.
digest_of(row(c.id, c.head, coalesce(c.updated, c.created), c.generation, c.requests, c.input_tokens, c.output_tokens, c.cost_nanos)::text)

-- part: complete
-- Whether a row is what was written, and so is what it names.
({intact} and r.cid is not null and (c.parent is null or p.cid is not null)
 and (c.forked_from is null or f.cid is not null))

-- part: whole
-- The columns of a whole record, with the ids behind its numbers.
uuid_send(c.id), uuid_send(r.id), uuid_send(p.id), c.base, c.head, uuid_send(f.id),
coalesce(c.forked_at, c.base),
(select uuid_send(e.id) from event e
 where e.cid = case when coalesce(c.forked_at, c.base) > c.base then c.cid else c.parent end
   and e.seq = coalesce(c.forked_at, c.base) - 1),
c.generation, c.deleted, c.created, coalesce(c.updated, c.created), c.status, c.owner, c.title, c.tags,
c.config, c.lineage, c.cid, c.project, c.imported,
json_build_array(c.requests, c.input_tokens, c.output_tokens)::text, c.cost_nanos, {complete}

-- part: related
-- The conversations that a record names.
left join conversation r on r.cid = coalesce(c.root, c.cid)
left join conversation p on p.cid = c.parent
left join conversation f on f.cid = c.forked_from

-- part: asked_events
-- Events given as one array a column.
unnest(%(places)s::bigint[], %(event_ids)s::uuid[], %(kinds)s::text[], %(times)s::bigint[], %(payloads)s::bytea[],
       %(digests)s::bigint[]) as e (place, id, kind, ts, data, digest)

-- part: asked_ranges
-- The events of several ranges.
unnest(%(cids)s::bigint[], %(los)s::bigint[], %(his)s::bigint[]) as r (cid, lo, hi)
join event e on e.cid = r.cid and e.seq >= r.lo and e.seq < r.hi

-- part: found
-- The events at places, as many as fit in the budget of bytes (one at least).
select e.seq, uuid_send(e.id), e.kind, e.ts, e.data, e.digest
from place p join event e on e.cid = p.cid and e.seq = p.seq
where p.before < %(budget)s

-- name: append
-- One batch of appends to any number of conversations: judged, written and told in one statement.
-- Each is taken or refused by itself; conversations are locked in the order of their numbers, so batches never deadlock.
with asked as (
  select * from unnest(%(ids)s::uuid[], %(generations)s::bigint[], %(expected)s::bigint[], %(counts)s::bigint[],
                       %(statuses)s::text[], %(set_titles)s::boolean[], %(titles)s::text[],
                       %(set_tags)s::boolean[], %(tags)s::text[], %(requests)s::bigint[], %(inputs)s::bigint[],
                       %(outputs)s::bigint[], %(costs)s::bigint[])
    with ordinality as a (id, generation, expected, count, status, set_title, title, set_tags, tags, requests, inputs,
                          outputs, costs, n)
),
locked as materialized (
  select c.*, {intact} as intact from conversation c
  where c.id = any (%(ids)s::uuid[]) and not c.deleted
  order by c.cid for no key update
),
judged as materialized (
  select a.*, l.cid, l.head, l.generation as current, l.intact,
         l.intact and (a.generation is null or a.generation = l.generation)
         and (a.expected is null or a.expected = l.head) as ok
  from asked a left join locked l on l.id = a.id
),
becoming as (
  select l.cid, l.id, l.parent, l.base, l.forked_from, l.forked_at, l.root, l.deleted, l.created, l.imported, l.erased,
         l.project, l.owner, l.config, l.lineage, l.generation, j.head + j.count as head,
         greatest(coalesce(l.updated, l.created), %(now)s) as updated,
         case when j.status is null then l.status else nullif(j.status, 'idle') end as status,
         case when j.set_title then j.title else l.title end as title,
         case when j.set_tags then j.tags else l.tags end as tags,
         l.requests + j.requests as requests, l.input_tokens + j.inputs as input_tokens,
         l.output_tokens + j.outputs as output_tokens, l.cost_nanos + j.costs as cost_nanos
  from judged j join locked l on l.cid = j.cid where j.ok
),
moved as (
  update conversation u
  set head = c.head, updated = c.updated, status = c.status, title = c.title, tags = c.tags,
      requests = c.requests, input_tokens = c.input_tokens, output_tokens = c.output_tokens, cost_nanos = c.cost_nanos,
      digest = {digest}, end_digest = {end_digest}
  from becoming c where u.cid = c.cid
),
written as (
  insert into event (cid, seq, id, kind, ts, data, digest)
  select j.cid, j.head + e.place, e.id, e.kind, e.ts, e.data, e.digest
  from unnest(%(numbers)s::bigint[], %(places)s::bigint[], %(event_ids)s::uuid[], %(kinds)s::text[],
              %(times)s::bigint[], %(payloads)s::bytea[], %(digests)s::bigint[])
    as e (n, place, id, kind, ts, data, digest)
  join judged j on j.n = e.n and j.ok
)
select j.head, j.current, j.ok, j.intact,
       (select pg_notify(%(channel)s, case when length(told.ids) < 7900 then told.ids else '*' end)
        from (select string_agg(o.id::text, ',') as ids from judged o where o.ok) told where told.ids is not null)
from judged j order by j.n;

-- name: append_one
-- One event to one conversation, alone in its batch: what most appends are. No row comes back when it is refused; the
-- statement above then says why.
with moved as (
  update conversation c
  set head = head + 1, updated = greatest(coalesce(updated, created), %(now)s), requests = requests + %(requests)s,
      input_tokens = input_tokens + %(inputs)s, output_tokens = output_tokens + %(outputs)s,
      cost_nanos = cost_nanos + %(costs)s,
      end_digest = digest_of(row(id, head + 1, greatest(coalesce(updated, created), %(now)s), generation,
                                 requests + %(requests)s, input_tokens + %(inputs)s, output_tokens + %(outputs)s,
                                 cost_nanos + %(costs)s)::text)
  where id = %(cid)s and not deleted and {intact}
    and (%(generation)s::bigint is null or generation = %(generation)s)
    and (%(expected)s::bigint is null or head = %(expected)s)
  returning cid, head
),
written as (
  insert into event (cid, seq, id, kind, ts, data, digest)
  select cid, head - 1, %(id)s, %(kind)s, %(ts)s, %(data)s, %(digest)s from moved
)
select head, pg_notify(%(channel)s, %(ids)s) from moved;

-- name: fork
-- The row of a fork and its first events. No row comes back when there is no such source or cut, or the id is taken.
with recursive source as materialized (
  select cid, parent, base, root, least(coalesce(%(at)s::bigint, head), head + 1) as cut, head, {intact} as intact
  from conversation c where id = %(source)s and not deleted for key share
),
part (cid, lo, parent, cut, intact) as (
  select cid, base, parent, cut, intact from source where cut between 0 and head
  union all
  select c.cid, c.base, c.parent, part.cut, {intact} from part join conversation c on c.cid = part.parent
  where part.lo >= part.cut and part.cut > 0
),
wanted (id, parent, base, head, forked_from, forked_at, root, generation, deleted, created, updated, status, owner, title,
        tags, config, lineage, project, imported, requests, input_tokens, output_tokens, cost_nanos, erased) as (
  select %(id)s::uuid, (select p.cid from part p where p.lo < p.cut limit 1), s.cut, s.cut + %(count)s, s.cid,
         null::bigint, coalesce(s.root, s.cid), 0::bigint, false, %(created)s::bigint, null::bigint,
         nullif(%(status)s, 'idle'), %(owner)s::text, %(title)s::text, %(tags)s::text, %(config)s::text,
         %(lineage)s::text, null::text, null::bigint, %(requests)s::bigint, %(inputs)s::bigint, %(outputs)s::bigint,
         %(costs)s::bigint, null::bigint
  from source s where s.cut between 0 and s.head and not exists (select from part where not part.intact)
),
made as (
  insert into conversation (id, parent, base, head, forked_from, forked_at, root, generation, deleted, created, updated,
                            status, owner, title, tags, config, lineage, project, imported,
                            requests, input_tokens, output_tokens, cost_nanos, erased, digest, end_digest)
  select c.*, {digest}, {end_digest} from wanted c
  on conflict (id) do nothing
  returning cid, parent, base, root
),
written as (
  insert into event (cid, seq, id, kind, ts, data, digest)
  select m.cid, m.base + e.place, e.id, e.kind, e.ts, e.data, e.digest
  from made m, {asked_events}
)
select m.base, uuid_send(r.id), uuid_send(p.id), uuid_send(e.id), m.cid
from made m
left join conversation r on r.cid = m.root
left join conversation p on p.cid = m.parent
left join event e on e.cid = m.parent and e.seq = m.base - 1;

-- name: insert_conversation
with c (id, parent, base, head, forked_from, forked_at, root, generation, deleted, created, updated, status, owner, title,
        tags, config, lineage, project, imported, requests, input_tokens, output_tokens, cost_nanos, erased) as (
  select %(id)s::uuid, %(parent)s::bigint, %(base)s::bigint, %(head)s::bigint, %(forked_from)s::bigint,
         %(forked_at)s::bigint, %(root)s::bigint, %(generation)s::bigint, %(deleted)s::boolean, %(created)s::bigint,
         %(updated)s::bigint, nullif(%(status)s, 'idle'), %(owner)s::text, %(title)s::text, %(tags)s::text,
         %(config)s::text, %(lineage)s::text, %(project)s::text, %(imported)s::bigint,
         %(requests)s::bigint, %(inputs)s::bigint, %(outputs)s::bigint, %(costs)s::bigint, null::bigint)
insert into conversation (id, parent, base, head, forked_from, forked_at, root, generation, deleted, created, updated,
                          status, owner, title, tags, config, lineage, project, imported,
                          requests, input_tokens, output_tokens, cost_nanos, erased, digest, end_digest)
select c.*, {digest}, {end_digest} from c
on conflict (id) do nothing
returning cid;

-- name: insert_events
insert into event (cid, seq, id, kind, ts, data, digest)
select %(cid)s, %(first)s + e.place, e.id, e.kind, e.ts, e.data, e.digest from {asked_events};

-- name: seal
-- The digests of a row that was changed; what changes one has found it intact before.
update conversation c set digest = {digest}, end_digest = {end_digest} where cid = %(cid)s;

-- name: row_of
-- What a write has to know about a conversation; locked until the transaction ends.
select cid, parent, base, head, forked_from, forked_at, root, generation, deleted, lineage, {intact}
from conversation c where id = %(id)s for no key update;

-- name: tree_of
-- The number of the tree a conversation is in.
select coalesce(root, cid) from conversation where id = %(id)s and not deleted;

-- name: lock_tree
-- Deletions in one tree go one after the other; what they collect depends on it.
select pg_advisory_xact_lock(hashtext(current_schema()), (%(tree)s %% 2147483647)::int);

-- name: lock_for_deletion
-- From here on nobody forks it.
select 1 from conversation where id = %(id)s for update;

-- name: record
-- A whole record with the ids behind its numbers; deleted ones too.
select {whole} from conversation c {related}
where c.id = %(id)s;

-- name: matching
-- Which records a filter lets through; a part of other statements.
(%(include_deleted)s or not c.deleted)
  and (%(statuses)s::text[] is null or coalesce(c.status, 'idle') = any (%(statuses)s::text[]))
  and {owner}
  and (%(ids)s::uuid[] is null or c.id = any (%(ids)s::uuid[]))
  and (%(text)s::text is null or strpos(lower(c.title collate "und-x-icu"), %(text)s) > 0)
  and (%(agent)s::text is null or case when {intact} then c.config::jsonb ->> 'agent' = %(agent)s end)
  and (%(root)s::uuid is null or coalesce(c.root, c.cid) = (select t.cid from conversation t where t.id = %(root)s))
  and (%(project)s::text is null
       or %(project)s = (select t.project from conversation t where t.cid = coalesce(c.root, c.cid)))
  and (%(folder)s::text is null
       or strpos(c.config, %(folder)s::text) > 0 or strpos(c.config, %(below_folder)s::text) > 0
       or exists (select 1 from conversation t where t.cid = c.root
                  and (strpos(t.config, %(folder)s::text) > 0 or strpos(t.config, %(below_folder)s::text) > 0)))
  and (%(tags)s::text is null or case when {intact} then c.tags::jsonb @> %(tags)s::jsonb end)
  and (%(created_after)s::bigint is null or c.created >= %(created_after)s)
  and (%(created_before)s::bigint is null or c.created < %(created_before)s)
  and (%(updated_after)s::bigint is null or coalesce(c.updated, c.created) >= %(updated_after)s)
  and (%(updated_before)s::bigint is null or coalesce(c.updated, c.created) < %(updated_before)s)
  and (%(min_nanos)s::bigint is null or c.cost_nanos >= %(min_nanos)s);

-- name: children
select uuid_send(f.id) from conversation f
where f.forked_from = (select cid from conversation where id = %(id)s) and not f.deleted
order by f.cid;

-- name: ancestry
-- Everything a conversation descends from, by events or by name; numbers rise from ancestor to descendant.
with recursive up (cid) as (
  select cid from conversation where id = %(id)s
  union
  select way.cid from up join conversation c on c.cid = up.cid,
    lateral (values (c.parent), (c.forked_from), (c.root)) way (cid)
  where way.cid is not null)
select uuid_send(c.id) from conversation c join up on up.cid = c.cid where c.id <> %(id)s order by c.cid;

-- name: named
-- Conversations whose id starts or ends with the digits.
select uuid_send(id) from conversation
where not deleted and replace(id::text, '-', '') similar to %(digits)s || '%%|%%' || %(digits)s
order by cid limit 6;

-- name: lineage
-- The ranges of a log, the newest first; the first row is the conversation itself, empty or not.
with recursive part (cid, id, lo, hi, parent, deleted, intact, depth) as (
  select cid, id, base, head, parent, deleted, {intact}, 0 from conversation c where id = %(id)s
  union all
  select c.cid, c.id, c.base, part.lo, c.parent, c.deleted, {intact}, part.depth + 1
  from part join conversation c on c.cid = part.parent)
select cid, uuid_send(id), lo, hi, deleted, intact from part order by depth;

-- name: page
-- Events of one owner, oldest first, as many as fit in the budget (one at least). Mostly all do, which a sum finds out
-- sooner than running totals, and neither carries payloads.
select seq, uuid_send(id), kind, ts, data, digest from event
where cid = %(cid)s and seq >= %(lo)s and seq < coalesce(
  (select %(hi)s::bigint from (
    select octet_length(data) as bytes from event where cid = %(cid)s and seq >= %(lo)s and seq < %(hi)s
    order by seq limit %(rows)s) size having sum(bytes) < %(budget)s),
  (select max(seq) + 1 from (
    select seq, sum(octet_length(data)) over (order by seq rows unbounded preceding) - octet_length(data) as before
    from event where cid = %(cid)s and seq >= %(lo)s and seq < %(hi)s
    order by seq limit %(rows)s) size where before < %(budget)s))
order by seq limit %(rows)s;

-- name: pages
-- Events of several ranges, oldest first, as many as fit in the budget (one at least).
with place as (
  select e.cid, e.seq, sum(octet_length(e.data)) over (order by e.seq rows unbounded preceding) - octet_length(e.data) as before
  from {asked_ranges}
  order by e.seq limit %(rows)s
)
{found} order by e.seq;

-- name: pages_reverse
-- The same, newest first.
with place as (
  select e.cid, e.seq, sum(octet_length(e.data)) over (order by e.seq desc rows unbounded preceding) - octet_length(e.data) as before
  from {asked_ranges}
  order by e.seq desc limit %(rows)s
)
{found} order by e.seq desc;

-- name: chosen
-- Events of several ranges that a filter lets through, in a direction, as many as fit in the budget (one at least).
with place as (
  select e.cid, e.seq, sum(octet_length(e.data)) over (order by e.seq {direction} rows unbounded preceding) - octet_length(e.data) as before
  from {asked_ranges}
   and (%(kinds)s::text[] is null or e.kind = any (%(kinds)s::text[]))
   and (%(after)s::bigint is null or e.ts >= %(after)s) and (%(before)s::bigint is null or e.ts < %(before)s)
  order by e.seq {direction} limit %(rows)s
)
{found} order by e.seq {direction};

-- name: ids
-- Places, ids and kinds of several ranges.
select e.seq, uuid_send(e.id), e.kind
from {asked_ranges} order by e.seq;

-- name: every
-- Events of a kind, whoever owns them, from a place on. The kind is a word of the statement, for its partial index.
select cid, seq, uuid_send(id), kind, ts, data, digest from event
where kind = '{kind}' and (cid, seq) > (%(cid)s, %(seq)s) order by cid, seq limit %(limit)s;

-- name: span
-- Events with their digests.
select e.seq, uuid_send(e.id), e.kind, e.ts, e.data, e.digest
from conversation c join event e on e.cid = c.cid and e.seq >= %(lo)s and e.seq < %(hi)s
where c.id = %(id)s order by e.seq;

-- name: found_events
-- Which of some events are stored, and where.
select e.id, c.id, e.seq from event e join conversation c on c.cid = e.cid where e.id = any (%(ids)s::uuid[]);

-- name: locate
select e.cid, e.seq, uuid_send(c.id) from event e join conversation c on c.cid = e.cid where e.id = %(id)s;

-- name: heads
-- Where the conversations that someone watches stand.
select uuid_send(id), head from conversation
where not deleted and id = any (string_to_array(%(ids)s, ',')::uuid[]);

-- name: lease
select owner, expires from lease where cid = %(cid)s;

-- name: set_lease
insert into lease (cid, owner, expires) values (%(cid)s, %(owner)s, %(expires)s)
on conflict (cid) do update set owner = excluded.owner, expires = excluded.expires;

-- name: drop_lease
-- The lease goes only if nobody took it over.
delete from lease
where cid = (select cid from conversation where id = %(id)s and generation = %(generation)s for no key update)
  and owner = %(owner)s;

-- name: bury
-- A tombstone: its events may still be shared, everything that describes it goes.
update conversation
set deleted = true, status = 'deleting', owner = null, title = null, tags = null, config = null, lineage = null,
    requests = 0, input_tokens = 0, output_tokens = 0, cost_nanos = 0
where cid = %(cid)s;

-- name: tombstone_row
-- What deciding about a tombstone's remains takes: its own numbers, the furthest cut into it, whether a fork names it.
select c.parent, c.base, c.head, c.forked_from, c.deleted,
       (select max(p.base) from conversation p where p.parent = c.cid),
       exists (select 1 from conversation f where f.forked_from = c.cid)
from conversation c where c.cid = %(cid)s;

-- name: drop_events
delete from event where cid = %(cid)s and seq >= %(lo)s and seq < %(hi)s;

-- name: trim
-- A tombstone keeps what forks reach, and no claim on its own parent once nothing reaches through it.
update conversation set head = %(head)s, parent = %(parent)s where cid = %(cid)s;

-- name: forks_of
-- Every living fork below a conversation, forks of forks too.
with recursive below (cid) as (
  select %(cid)s::bigint
  union
  select f.cid from below join conversation f on f.forked_from = below.cid)
select uuid_send(f.id) from conversation f join below on f.cid = below.cid
where not f.deleted and f.cid <> %(cid)s order by f.cid desc;

-- name: payloads
select seq, uuid_send(id), kind, ts, data from event
where cid = %(cid)s and seq >= %(lo)s and seq < %(hi)s order by seq limit 256;

-- name: set_payload
update event set data = %(data)s, digest = %(digest)s where cid = %(cid)s and seq = %(seq)s;

-- name: revive
-- An imported continuation; a tombstone comes back to life.
update conversation set deleted = false, updated = greatest(coalesce(updated, created), %(updated)s),
                        config = coalesce(%(config)s, config), lineage = coalesce(%(lineage)s, lineage)
where cid = %(cid)s;

-- name: tell
-- Say to every process that something happened to a conversation.
select pg_notify(%(channel)s, %(ids)s);

-- name: lock_migration
-- One process at a time changes the schema.
select pg_advisory_xact_lock(hashtext('bough migrate ' || current_schema()));

-- name: server_time
select (extract(epoch from clock_timestamp()) * 1000000)::bigint;

-- name: tell_changed
-- Say to every process that this transaction wrote something; nothing is said when it did not.
select pg_notify(%(channel)s, '') where pg_current_xact_id_if_assigned() is not null;

-- name: count_imported
-- Where the imported events of a log end; null where there is no such log.
with recursive part (cid, parent, lo, hi, imported) as (
  select cid, parent, base, head, imported from conversation where id = %(id)s and not deleted
  union all
  select c.cid, c.parent, c.base, part.lo, c.imported from part join conversation c on c.cid = part.parent)
select max(case when imported > lo and hi > lo then least(imported, hi) else 0 end) from part;

-- name: size
-- Bytes of payload of some own events.
select coalesce(sum(octet_length(data)), 0)::bigint from event
where cid = %(cid)s and seq >= %(lo)s and seq < %(hi)s;

-- name: be_patient
-- Until the transaction ends: what works on whole logs, or waits for who does, may take longer than other statements.
select set_config('statement_timeout', '120s', true), set_config('lock_timeout', '120s', true);

-- name: deleted_rows
-- Rows that were deleted on this connection since it last reported its statistics; the difference of two is exact.
select relname::text, n_tup_del from pg_stat_xact_user_tables where schemaname = current_schema();

-- name: add_usage
-- What imported events have used.
update conversation set requests = requests + %(requests)s, input_tokens = input_tokens + %(inputs)s,
                        output_tokens = output_tokens + %(outputs)s, cost_nanos = cost_nanos + %(costs)s
where cid = %(cid)s;
