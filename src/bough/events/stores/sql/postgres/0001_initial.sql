-- The event log: conversations, their events, and who runs them. See sqlite/0001_initial.sql for the columns.
-- Nothing joins across conversations but lineages, so `event` can be partitioned by conversation.

create table conversation (
  cid bigint generated always as identity primary key,
  id uuid not null unique,
  parent bigint,
  base bigint not null,
  head bigint not null,
  forked_from bigint,
  forked_at bigint,
  root bigint,
  generation bigint not null,
  deleted boolean not null,
  created bigint not null,
  updated bigint,
  status text,
  owner text,
  title text,
  tags text,
  config text,
  lineage text
) with (fillfactor = 70);

create index conversation_parent on conversation (parent, base) where parent is not null;

create index conversation_forked_from on conversation (forked_from) where forked_from is not null;

create table event (
  cid bigint not null,
  seq bigint not null,
  id uuid not null unique,
  kind text not null,
  ts bigint not null,
  data bytea not null,
  digest bigint not null,
  primary key (cid, seq)
);

-- Payloads are not compressed by the server: that would cost more time than the disk it saves.
alter table event alter column data set storage external;

create table lease (
  cid bigint primary key,
  owner text not null,
  expires bigint not null
);
