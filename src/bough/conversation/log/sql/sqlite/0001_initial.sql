-- Folds of logs, kept beside them: made again from events whenever one is missing.

create table snapshot (
  k integer primary key,        -- cid << 32 | seq: the state after seq events; cid owns the event at seq - 1
  fold text not null,           -- which fold made it
  turns integer not null,       -- user turns begun, so that a turn is found without reading
  digest integer not null,      -- CRC-32 of the rest
  state blob not null           -- JSON, compressed
) strict;

create trigger snapshot_deleted after delete on conversation
begin
  delete from snapshot where k > old.cid << 32 and k < (old.cid + 1) << 32;
end;

-- Only a trim sets `parent`: events from `head` on are gone.
create trigger snapshot_trimmed after update of parent on conversation
begin
  delete from snapshot where k > new.cid << 32 | new.head and k < (new.cid + 1) << 32;
end;

-- Any state of the tree may hold text of what was erased.
create trigger snapshot_erased after update of erased on conversation
begin
  delete from snapshot where k in (
    select s.k from conversation c cross join snapshot s on s.k > c.cid << 32 and s.k < (c.cid + 1) << 32
    where ifnull(c.root, c.cid) = ifnull(new.root, new.cid));
end;
