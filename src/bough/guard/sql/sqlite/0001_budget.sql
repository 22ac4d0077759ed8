-- Budgets that conversations share. Money is counted in billionths of a dollar, so that sums are exact.

create table budget (
  id text primary key,
  usd_nanos integer,                  -- bounds; null: no bound
  tokens integer,
  requests integer,
  spent_nanos integer not null default 0,
  spent_tokens integer not null default 0,
  spent_requests integer not null default 0,
  held_nanos integer not null default 0,     -- the sum of what `budget_member` holds
  held_tokens integer not null default 0,
  held_requests integer not null default 0
) strict, without rowid;

-- One row for each conversation that spends from a budget, with what it has spent and what its request in flight may
-- cost. No reference to the conversation: what was spent outlives what was deleted.
create table budget_member (
  budget text not null,
  conversation blob not null,         -- its id
  generation integer not null,        -- of the lease of the run whose request is in flight
  spent_nanos integer not null,
  spent_tokens integer not null,
  spent_requests integer not null,
  held_nanos integer not null,
  held_tokens integer not null,
  held_requests integer not null,
  primary key (conversation, budget)
) strict, without rowid;

create index budget_member_held on budget_member (budget) where held_requests > 0;

create trigger budget_member_added after insert on budget_member
begin
  update budget set
    held_nanos = held_nanos + new.held_nanos,
    held_tokens = held_tokens + new.held_tokens,
    held_requests = held_requests + new.held_requests
  where id = new.budget;
end;

-- Another conversation may use the id of a deleted one. What a request in flight held is spent.
create trigger budget_member_ended after update of deleted on conversation when new.deleted
begin
  update budget_member set
    spent_nanos = spent_nanos + held_nanos,
    spent_tokens = spent_tokens + held_tokens,
    spent_requests = spent_requests + held_requests,
    held_nanos = 0, held_tokens = 0, held_requests = 0
  where conversation = new.id;
  delete from budget_member where conversation = new.id;
end;

create trigger budget_member_changed after update on budget_member
begin
  update budget set
    spent_nanos = spent_nanos + new.spent_nanos - old.spent_nanos,
    spent_tokens = spent_tokens + new.spent_tokens - old.spent_tokens,
    spent_requests = spent_requests + new.spent_requests - old.spent_requests,
    held_nanos = held_nanos + new.held_nanos - old.held_nanos,
    held_tokens = held_tokens + new.held_tokens - old.held_tokens,
    held_requests = held_requests + new.held_requests - old.held_requests
  where id = new.budget;
end;
