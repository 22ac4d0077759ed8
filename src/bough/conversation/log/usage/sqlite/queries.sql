-- Every statement about usage by day on SQLite.

-- name: add
-- What one event used, added to the row of its conversation, day, agent and model.
insert into usage_day (conversation, day, agent, model, owner, requests, input_tokens, output_tokens,
                       cache_read_tokens, cache_write_tokens, cost_usd, unpriced)
select c.id, :day, ifnull(c.config ->> '$.agent', ''), :model, c.owner, :requests, :input_tokens, :output_tokens,
       :cache_read_tokens, :cache_write_tokens, :cost_usd, :unpriced
from conversation c where c.id = :conversation
on conflict (conversation, day, agent, model) do update set
  requests = requests + excluded.requests,
  input_tokens = input_tokens + excluded.input_tokens,
  output_tokens = output_tokens + excluded.output_tokens,
  cache_read_tokens = cache_read_tokens + excluded.cache_read_tokens,
  cache_write_tokens = cache_write_tokens + excluded.cache_write_tokens,
  cost_usd = cost_usd + excluded.cost_usd,
  unpriced = unpriced + excluded.unpriced;
