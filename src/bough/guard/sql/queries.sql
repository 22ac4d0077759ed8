-- Statements about budgets that SQLite and Postgres share; see `bough.events.queries`.

-- name: create
insert into budget (id, usd_nanos, tokens, requests)
values (:budget, :usd_nanos::bigint, :tokens::bigint, :requests::bigint)
on conflict (id) do nothing;

-- name: change
-- A bound that is null stays.
update budget set
  usd_nanos = coalesce(:usd_nanos::bigint, usd_nanos),
  tokens = coalesce(:tokens::bigint, tokens),
  requests = coalesce(:requests::bigint, requests)
where id = :budget
returning usd_nanos, tokens, requests;

-- name: get
select usd_nanos, tokens, requests, spent_nanos, spent_tokens, spent_requests, held_nanos, held_tokens, held_requests
from budget where id = :budget;

-- name: reserve
-- Hold what a request may cost, if the budget has that left, or if no other request is in flight and the budget is not
-- used up. What an earlier run of the conversation held and never settled is spent. No row: refused.
insert into budget_member (budget, conversation, generation, spent_nanos, spent_tokens, spent_requests,
                           held_nanos, held_tokens, held_requests)
select b.id, :conversation, :generation, 0, 0, 0, coalesce(:nanos::bigint, 0), :tokens::bigint, 1
from budget b
where b.id = :budget
  and (b.usd_nanos is null or :nanos::bigint is not null)
  and ((b.usd_nanos is null or b.spent_nanos + b.held_nanos + :nanos::bigint <= b.usd_nanos)
       and (b.tokens is null or b.spent_tokens + b.held_tokens + :tokens::bigint <= b.tokens)
       and (b.requests is null or b.spent_requests + b.held_requests + 1 <= b.requests)
       or b.held_requests = 0
       and (b.usd_nanos is null or b.spent_nanos < b.usd_nanos)
       and (b.tokens is null or b.spent_tokens < b.tokens)
       and (b.requests is null or b.spent_requests < b.requests))
{lock}
on conflict (conversation, budget) do update set
  generation = excluded.generation,
  spent_nanos = budget_member.spent_nanos + budget_member.held_nanos,
  spent_tokens = budget_member.spent_tokens + budget_member.held_tokens,
  spent_requests = budget_member.spent_requests + budget_member.held_requests,
  held_nanos = excluded.held_nanos,
  held_tokens = excluded.held_tokens,
  held_requests = 1
returning 1;

-- name: join
insert into budget_member (budget, conversation, generation, spent_nanos, spent_tokens, spent_requests,
                           held_nanos, held_tokens, held_requests)
select b.id, :conversation, 0, 0, 0, 0, 0, 0, 0 from budget b where b.id = :budget {lock}
on conflict (conversation, budget) do nothing;

-- name: settle
-- Charge the usage of one event. A response ends the request in flight: where the provider told no usage or no price is
-- known, what was held is spent.
update budget_member set
  spent_requests = spent_requests + :requests::bigint,
  spent_tokens = spent_tokens + case when :tokens::bigint > 0 then :tokens::bigint
                                     else held_tokens * :ends::bigint end,
  spent_nanos = spent_nanos + coalesce(:nanos::bigint, held_nanos * :ends::bigint),
  held_requests = held_requests * (1 - :ends::bigint),
  held_tokens = held_tokens * (1 - :ends::bigint),
  held_nanos = held_nanos * (1 - :ends::bigint)
where conversation = :conversation {lock_first};

-- name: release
-- End a request without a response, and charge what is known of it.
update budget_member set
  spent_requests = spent_requests + :requests::bigint,
  spent_tokens = spent_tokens + :tokens::bigint,
  spent_nanos = spent_nanos + :nanos::bigint,
  held_requests = 0, held_tokens = 0, held_nanos = 0
where conversation = :conversation and generation = :generation and held_requests > 0 {lock_first};

-- name: forget
-- A question that has spent nothing leaves no row.
delete from budget_member
where conversation = :conversation and held_requests = 0
  and spent_nanos = 0 and spent_tokens = 0 and spent_requests = 0;

-- name: holds
select uuid_send(conversation), generation from budget_member where budget = :budget and held_requests > 0;

-- name: charge_hold
-- Charge the amount held by a request whose run has ended.
update budget_member set
  spent_requests = spent_requests + held_requests,
  spent_tokens = spent_tokens + held_tokens,
  spent_nanos = spent_nanos + held_nanos,
  held_requests = 0, held_tokens = 0, held_nanos = 0
where conversation = :conversation and budget = :budget and generation = :generation and held_requests > 0 {lock_first};

-- name: list
-- Budgets by id; with an empty prefix, those of no tenant.
select id, usd_nanos, tokens, requests, spent_nanos, spent_tokens, spent_requests, held_nanos, held_tokens, held_requests
from budget
where id > :after
  and (:prefix::text is null or :prefix = '' and id not like '%/%'
       or :prefix <> '' and substr(id, 1, length(:prefix)) = :prefix)
order by id limit :limit;

-- name: members
-- What has spent from a budget, the most expensive first.
select uuid_send(conversation), generation, spent_nanos, spent_tokens, spent_requests, held_nanos, held_tokens,
       held_requests
from budget_member where budget = :budget
order by spent_nanos desc, spent_tokens desc, conversation limit :limit;
