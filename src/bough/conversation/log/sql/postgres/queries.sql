-- Every statement about kept states on Postgres. See sqlite/queries.sql.

-- name: log
-- The number of events of a log, and what was erased in it.
with recursive part (cid, parent, hi, erased) as (
  select cid, parent, head, erased from conversation where id = %(id)s and not deleted
  union all
  select c.cid, c.parent, part.hi, c.erased from part join conversation c on c.cid = part.parent)
select max(hi), count(erased) || ':' || coalesce(max(erased), 0) from part;

-- name: nearest
-- The latest state of a log at or before a cut. The ranges come newest first, and one row of one of them is read.
with recursive part (cid, parent, lo, hi) as (
  select cid, parent, base, head from conversation where id = %(id)s and not deleted
  union all
  select c.cid, c.parent, c.base, part.lo from part join conversation c on c.cid = part.parent)
select s.cid, s.seq, s.turns, s.digest, s.state
from part cross join lateral (
  select n.cid, n.seq, n.turns, n.digest, n.state from snapshot n
  where n.cid = part.cid and n.seq > part.lo and n.seq <= least(part.hi, %(cut)s)
    and n.fold = %(fold)s and n.turns <= %(turns)s
  order by n.seq desc limit 1) s
order by s.seq desc limit 1;

-- name: lock
-- Nothing of the tree is erased until the transaction ends: deletions take the same lock alone.
select pg_advisory_xact_lock_shared(hashtext(current_schema()), (coalesce(root, cid) %% 2147483647)::int)
from conversation where id = %(id)s;

-- name: owner
-- Who owns the event before a place, where that is still the event that was folded; it stays until the insert is done.
with recursive part (cid, parent, lo, hi) as (
  select cid, parent, base, head from conversation where id = %(id)s and not deleted
  union all
  select c.cid, c.parent, c.base, part.lo from part join conversation c on c.cid = part.parent)
select part.cid from part
join event e on e.cid = part.cid and e.seq = %(seq)s - 1
where part.lo < %(seq)s and %(seq)s <= part.hi and e.id = %(event)s;

-- name: keep
insert into snapshot (cid, seq, fold, turns, digest, state)
values (%(cid)s, %(seq)s, %(fold)s, %(turns)s, %(digest)s, %(state)s)
on conflict (cid, seq) do update
set fold = excluded.fold, turns = excluded.turns, digest = excluded.digest, state = excluded.state
where snapshot.fold <> excluded.fold;

-- name: forget
delete from snapshot where cid = %(cid)s and seq = %(seq)s;

-- name: kept
-- States behind a place, for checks.
select cid, seq, fold, turns, digest, state from snapshot
where (cid, seq) > (%(cid)s, %(seq)s) order by cid, seq limit %(limit)s;
