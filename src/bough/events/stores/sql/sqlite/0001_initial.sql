-- The event log: conversations, their events, and who runs them.
-- A plain fork is one narrow row: what can be derived is not stored (the cut is `base` unless an import moved it, the
-- event at the cut is found by its key, `updated` is null until the first change, `status` is null while idle).

create table conversation (
  cid integer primary key,
  id blob not null unique,
  parent integer,               -- owner of the event at base - 1
  base integer not null,        -- events shared; own events start at this seq
  head integer not null,        -- events in all
  forked_from integer,          -- what the caller forked; null: the same as parent
  forked_at integer,            -- null: the same as base
  root integer,                 -- null: itself
  generation integer not null,
  deleted integer not null,
  created integer not null,     -- microseconds since 1970, like every time here
  updated integer,
  status text,
  owner text,
  title text,
  tags text,                    -- JSON objects from here on
  config text,
  lineage text
) strict;

create index conversation_parent on conversation (parent, base) where parent is not null;

create index conversation_forked_from on conversation (forked_from) where forked_from is not null;

create table event (
  k integer primary key,        -- cid << 32 | seq
  id blob not null unique,
  kind text not null,
  ts integer not null,
  data blob not null,
  digest integer not null
) strict;

create table lease (
  cid integer primary key,
  owner text not null,
  expires integer not null
) strict;
