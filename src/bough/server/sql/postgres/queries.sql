-- What differs about keys, tenants, webhooks and usage on Postgres.

-- part: usage_key
-- What usage is grouped by, as text.
case %(by)s::text when 'day' then u.day::text when 'agent' then u.agent when 'model' then u.model
                when 'tree' then coalesce(r.id, u.conversation)::text else u.conversation::text end

-- name: lock_tenant
-- Held until the transaction ends; a lock on the tenant's row would miss `local`, which has none.
select pg_advisory_xact_lock(hashtextextended('bough tenant ' || %(id)s::text, 0));

-- name: a2a_tasks
-- Tasks in an owner's conversations with an A2A agent, the most recently changed first.
select e.ts, t.k, uuid_send(t.id), t.cid, t.first
from conversation c join task t on t.cid = c.cid join event e on e.cid = t.cid and e.seq = t.last
where c.owner is not distinct from %(owner)s and c.config::json ->> 'a2a_agent' = %(agent)s
  and (%(state)s::int is null or t.state = %(state)s) and (%(after)s::bigint is null or e.ts >= %(after)s)
order by e.ts desc, t.k desc;
