-- Statements about usage by day that SQLite and Postgres share; see `bough.events.queries`.

-- name: add
-- What one event used, added to the row of its conversation, day, agent and model.
insert into usage_day (conversation, day, agent, model, owner, requests, input_tokens, output_tokens,
                       cache_read_tokens, cache_write_tokens, cost_usd, unpriced)
select c.id, :day, coalesce(c.config::jsonb ->> 'agent', ''), :model, c.owner, :requests, :input_tokens,
       :output_tokens, :cache_read_tokens, :cache_write_tokens, :cost_usd, :unpriced
from conversation c where c.id = :conversation
on conflict (conversation, day, agent, model) do update set
  requests = usage_day.requests + excluded.requests,
  input_tokens = usage_day.input_tokens + excluded.input_tokens,
  output_tokens = usage_day.output_tokens + excluded.output_tokens,
  cache_read_tokens = usage_day.cache_read_tokens + excluded.cache_read_tokens,
  cache_write_tokens = usage_day.cache_write_tokens + excluded.cache_write_tokens,
  cost_usd = usage_day.cost_usd + excluded.cost_usd,
  unpriced = usage_day.unpriced + excluded.unpriced;
