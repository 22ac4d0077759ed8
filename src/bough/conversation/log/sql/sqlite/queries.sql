-- Every statement about kept states on SQLite. What was erased in the ranges of a log is told by how many of their owners
-- were, and when the last one was: a state folded before does not fit behind it.

-- name: log
-- The number of events of a log, and what was erased in it.
with recursive part (cid, parent, hi, erased) as (
  select cid, parent, head, erased from conversation where id = :id and not deleted
  union all
  select c.cid, c.parent, part.hi, c.erased from part join conversation c on c.cid = part.parent)
select max(hi), count(erased) || ':' || ifnull(max(erased), 0) from part;

-- name: nearest
-- The latest state of a log at or before a cut. The ranges come newest first, and one row of one of them is read.
with recursive part (cid, parent, lo, hi) as (
  select cid, parent, base, head from conversation where id = :id and not deleted
  union all
  select c.cid, c.parent, c.base, part.lo from part join conversation c on c.cid = part.parent)
select s.k >> 32, s.k & 4294967295, s.turns, s.digest, s.state
from part cross join snapshot s on s.k = (
  select n.k from snapshot n
  where n.k > part.cid << 32 | part.lo and n.k <= part.cid << 32 | min(part.hi, :cut)
    and n.fold = :fold and n.turns <= :turns
  order by n.k desc limit 1)
limit 1;

-- name: lock
-- Nothing of the tree is erased until the transaction ends: the writer is alone.
select 1 where :id is not null;

-- name: owner
-- Who owns the event before a place, where that is still the event that was folded.
with recursive part (cid, parent, lo, hi) as (
  select cid, parent, base, head from conversation where id = :id and not deleted
  union all
  select c.cid, c.parent, c.base, part.lo from part join conversation c on c.cid = part.parent)
select part.cid from part join event e on e.k = part.cid << 32 | (:seq - 1)
where part.lo < :seq and :seq <= part.hi and e.id = :event;

-- name: keep
insert into snapshot (k, fold, turns, digest, state) values (:cid << 32 | :seq, :fold, :turns, :digest, :state)
on conflict (k) do update
set fold = excluded.fold, turns = excluded.turns, digest = excluded.digest, state = excluded.state
where fold <> excluded.fold;

-- name: forget
delete from snapshot where k = :cid << 32 | :seq;

-- name: kept
-- States behind a place, for checks.
select k >> 32, k & 4294967295, fold, turns, digest, state from snapshot
where k > :cid << 32 | :seq order by k limit :limit;
