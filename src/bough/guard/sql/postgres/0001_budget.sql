-- Budgets that conversations share. See sqlite/0001_budget.sql for the columns.

create table budget (
  id text primary key,
  usd_nanos bigint,
  tokens bigint,
  requests bigint,
  spent_nanos bigint not null default 0,
  spent_tokens bigint not null default 0,
  spent_requests bigint not null default 0,
  held_nanos bigint not null default 0,
  held_tokens bigint not null default 0,
  held_requests bigint not null default 0
) with (fillfactor = 50);

create table budget_member (
  budget text not null,
  conversation uuid not null,
  generation bigint not null,
  spent_nanos bigint not null,
  spent_tokens bigint not null,
  spent_requests bigint not null,
  held_nanos bigint not null,
  held_tokens bigint not null,
  held_requests bigint not null,
  primary key (conversation, budget)
) with (fillfactor = 70);

create index budget_member_held on budget_member (budget) where held_requests > 0;

create function budget_member_add() returns trigger language plpgsql as $$
begin
  update budget set
    held_nanos = held_nanos + new.held_nanos,
    held_tokens = held_tokens + new.held_tokens,
    held_requests = held_requests + new.held_requests
  where id = new.budget;
  return null;
end $$;

create trigger budget_member_added after insert on budget_member
for each row execute function budget_member_add();

create function budget_member_change() returns trigger language plpgsql as $$
begin
  update budget set
    spent_nanos = spent_nanos + new.spent_nanos - old.spent_nanos,
    spent_tokens = spent_tokens + new.spent_tokens - old.spent_tokens,
    spent_requests = spent_requests + new.spent_requests - old.spent_requests,
    held_nanos = held_nanos + new.held_nanos - old.held_nanos,
    held_tokens = held_tokens + new.held_tokens - old.held_tokens,
    held_requests = held_requests + new.held_requests - old.held_requests
  where id = new.budget;
  return null;
end $$;

create trigger budget_member_changed after update on budget_member
for each row execute function budget_member_change();

create function budget_member_end() returns trigger language plpgsql as $$
begin
  update budget_member set
    spent_nanos = spent_nanos + held_nanos,
    spent_tokens = spent_tokens + held_tokens,
    spent_requests = spent_requests + held_requests,
    held_nanos = 0, held_tokens = 0, held_requests = 0
  where conversation = new.id;
  delete from budget_member where conversation = new.id;
  return null;
end $$;

create trigger budget_member_ended after update of deleted on conversation
for each row when (new.deleted) execute function budget_member_end();
