-- Digests of conversation rows, where an imported log ends, bytes of inputs, and tables of other packages. See
-- sqlite/0002_digests.sql for the columns.

alter table conversation rename column updated to changed;

alter table conversation
  add column digest bigint,
  add column place bigint,
  add column imported bigint,
  add column erased bigint,
  add column project text;

create index conversation_owner on conversation (owner, cid) where owner is not null;

-- A collection reads its own kind of events and no others.
create index event_files_kept on event (cid, seq) where kind = 'FilesKept';

create table blob (
  sha256 bytea primary key,
  media_type text not null,
  size bigint not null,
  data bytea not null
);

alter table blob alter column data set storage external;

create table blob_use (
  cid bigint not null,
  seq bigint not null,
  sha256 bytea not null,
  primary key (cid, seq, sha256)
);

create index blob_use_sha256 on blob_use (sha256);

create table beside (
  package text primary key,
  version int not null
);

-- Leases count by the server's clock now; whoever held one is fenced at its next renewal.
delete from lease;
