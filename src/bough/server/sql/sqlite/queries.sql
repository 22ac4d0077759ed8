-- What differs about keys, tenants, webhooks and usage on SQLite.

-- part: usage_key
-- What usage is grouped by, as text.
case :by when 'day' then cast(u.day as text) when 'agent' then u.agent when 'model' then u.model
                when 'tree' then lower(hex(ifnull(r.id, u.conversation))) else lower(hex(u.conversation)) end

-- name: lock_tenant
-- There is one writer anyway.
select 1 from server_tenant where id = :id;

-- name: a2a_tasks
-- Tasks in an owner's conversations with an A2A agent, the most recently changed first.
select e.ts, t.k, t.id, t.cid, t.first
from conversation c join task t on t.cid = c.cid join event e on e.k = t.cid << 32 | t.last
where c.owner is :owner and case when json_valid(c.config) then c.config ->> '$.a2a_agent' = :agent end
  and (:state is null or t.state = :state) and (:after is null or e.ts >= :after)
order by e.ts desc, t.k desc;
