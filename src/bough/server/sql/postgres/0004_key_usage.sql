create table server_payer (
  task uuid primary key,         -- its id
  cid bigint not null references conversation (cid) on delete cascade,
  key text not null              -- server_key.id: who asked for it pays for it, and for what its sub-agents use
);
create index server_payer_cid on server_payer (cid);

create table server_key_usage (
  key text not null,
  day integer not null,          -- UTC, days since 1970
  conversation uuid not null,    -- its id: runs beside each other write rows of their own
  tokens bigint not null,
  cost_usd double precision not null,
  primary key (key, day, conversation)
) with (fillfactor = 70);
