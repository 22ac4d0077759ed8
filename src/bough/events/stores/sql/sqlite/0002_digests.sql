-- Digests of conversation rows, where an imported log ends, bytes of inputs, and tables of other packages.

-- A process of the older program that has the store open fails at its next append, instead of leaving digests behind.
alter table conversation rename column updated to changed;

alter table conversation add column digest integer;   -- of the columns that appends do not change

alter table conversation add column place integer;    -- of id and head

alter table conversation add column imported integer; -- own events before this seq came by import; null: none

alter table conversation add column erased integer;   -- when payloads were scrubbed; null: never

alter table conversation add column project text;     -- null in forks: as the root's

create index conversation_owner on conversation (owner, cid) where owner is not null;

-- The column meant "what the caller forked, always" before it meant "only where that is not the parent".
update conversation set forked_from = null where forked_from = parent;

create table blob (
  sha256 blob primary key,
  media_type text not null,
  size integer not null,
  data blob not null
) strict;

create table blob_use (
  cid integer not null,
  seq integer not null,
  sha256 blob not null,
  primary key (cid, seq, sha256)
) strict, without rowid;

create index blob_use_sha256 on blob_use (sha256);

create table beside (
  package text primary key,
  version integer not null
) strict, without rowid;

-- Leases count by the machine's monotonic clock now; whoever held one is fenced at its next renewal.
drop table lease;

create table lease (
  cid integer primary key,
  owner text not null,
  boot text not null,           -- of which start of the machine the clock is
  expires integer not null
) strict;
