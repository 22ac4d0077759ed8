-- What each conversation used itself, by day, agent and model: sums of events, written with them. What its sub-agents
-- used is in rows of their own. No reference to the conversation: what was spent outlives what was deleted.

create table usage_day (
  conversation blob not null,   -- its id
  day integer not null,         -- UTC, days since 1970
  agent text not null,
  model text not null,
  owner text,
  requests integer not null,
  input_tokens integer not null,
  output_tokens integer not null,
  cache_read_tokens integer not null,
  cache_write_tokens integer not null,
  cost_usd real not null,       -- dollars
  unpriced integer not null,    -- tokens whose price nobody knows
  primary key (conversation, day, agent, model)
) strict, without rowid;

create index usage_owner on usage_day (owner, day);
