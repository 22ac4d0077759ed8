-- What each conversation used itself, by day, agent and model. See sqlite/0001_usage.sql for the columns.

create table usage_day (
  conversation uuid not null,
  day integer not null,
  agent text not null,
  model text not null,
  owner text,
  requests bigint not null,
  input_tokens bigint not null,
  output_tokens bigint not null,
  cache_read_tokens bigint not null,
  cache_write_tokens bigint not null,
  cost_usd double precision not null,
  unpriced bigint not null,
  primary key (conversation, day, agent, model)
) with (fillfactor = 70);

create index usage_owner on usage_day (owner, day);
