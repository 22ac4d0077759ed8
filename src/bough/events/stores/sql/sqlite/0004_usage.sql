-- What the own events of each conversation have used, for lists by cost.

-- A process of the older program that has the store open fails at its next append, instead of leaving the usage behind.
alter table conversation rename column place to end_digest;

-- Requests, input and output tokens as a JSON array; null: none. One column, because most forks have none.
alter table conversation add column counts text;

alter table conversation add column cost_nanos integer not null default 0;   -- billionths of a dollar

with used as materialized (
  select k >> 32 as cid, usage_of(kind, data) as amounts from event
  where kind in ('ModelResponded', 'Condensed', 'UsageAdded', 'ToolReturned', 'ToolFailed')
),
total as materialized (
  select cid, add_counts(null, sum(amounts ->> 0), sum(amounts ->> 1), sum(amounts ->> 2)) as counts,
         sum(amounts ->> 3) as cost_nanos
  from used group by cid
)
update conversation set counts = total.counts, cost_nanos = total.cost_nanos
from total where total.cid = conversation.cid and not conversation.deleted;

-- Damaged rows keep a digest that does not match.
update conversation set
  end_digest = digest_of(id, head, ifnull(updated, created), generation, cast(counts as blob), cost_nanos)
where end_digest is digest_of(id, head, ifnull(updated, created), generation);
