-- What the own events of each conversation have used. See sqlite/0004_usage.sql.

alter table conversation rename column place to end_digest;

alter table conversation
  add column requests bigint not null default 0,
  add column input_tokens bigint not null default 0,
  add column output_tokens bigint not null default 0,
  add column cost_nanos bigint not null default 0;

-- One amount of an event, at most `highest`. A damaged payload has none.
create function amount_of(kind text, data bytea, name text, missing numeric, factor float8, highest numeric)
returns numeric language plpgsql as $$
declare
  usage jsonb;
  amount numeric;
begin
  usage := convert_from(data, 'UTF8')::jsonb -> 'usage';
  if usage is null and kind in ('ModelResponded', 'UsageAdded') then usage := '{}'; end if;
  if jsonb_typeof(usage) is distinct from 'object' then return 0; end if;
  amount := coalesce((usage ->> name)::numeric, missing);
  if factor > 1 then amount := floor(least(amount, highest)::float8 * factor + 0.5)::numeric; end if;
  return least(greatest(amount, 0), highest);
exception when others then
  return 0;
end
$$;

update conversation c set
  requests = total.requests, input_tokens = total.input_tokens, output_tokens = total.output_tokens,
  cost_nanos = total.cost_nanos
from (
  select e.cid,
         sum(amount_of(kind, data, 'requests', 1, 1, 1099511627776))::bigint as requests,
         sum(amount_of(kind, data, 'input_tokens', 0, 1, 1099511627776))::bigint as input_tokens,
         sum(amount_of(kind, data, 'output_tokens', 0, 1, 1099511627776))::bigint as output_tokens,
         sum(amount_of(kind, data, 'cost_usd', 0, 1000000000, 1125899906842624))::bigint as cost_nanos
  from event e
  where kind in ('ModelResponded', 'Condensed', 'UsageAdded', 'ToolReturned', 'ToolFailed')
  group by e.cid
) total
where total.cid = c.cid and not c.deleted;

drop function amount_of(text, bytea, text, numeric, float8, numeric);

-- Damaged rows keep a digest that does not match.
update conversation c set
  end_digest = digest_of(row(c.id, c.head, coalesce(c.updated, c.created), c.generation, c.requests, c.input_tokens,
                             c.output_tokens, c.cost_nanos)::text)
where end_digest = digest_of(row(c.id, c.head, coalesce(c.updated, c.created), c.generation)::text);
