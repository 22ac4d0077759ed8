-- Tasks beside the log: one narrow row each, saying who is next and in which state. What was asked and what came of it
-- is in the events that `first` and `last` name. Finished tasks stay out of every index that a claim reads.

create table task (
  k integer primary key,        -- order of age
  id blob not null unique,
  cid integer not null,         -- conversation.cid
  format integer not null,      -- of this row; a worker claims only formats it knows
  state integer not null,       -- 0 pending, 1 running, 2 input_required, 3 completed, 4 failed, 5 cancelled
  version integer not null,     -- transitions
  attempts integer not null,
  max_attempts integer not null,
  priority integer not null,
  queue text not null,
  not_before integer,           -- microseconds since 1970, like every time here
  deadline integer,
  first integer not null,       -- seq of the first TaskChanged
  last integer not null,        -- seq of the latest TaskChanged
  parent integer,               -- cid of the conversation that started it
  call text,                    -- the tool call of the parent that started it
  under integer,                -- k of the parent's task whose run started it; null: a run that is no task
  key text,                     -- idempotency key
  agent text,
  job integer                   -- of an engine that delivers tasks to workers
) strict;

create unique index task_live on task (cid) where state < 3;

create index task_cid on task (cid, k);

create index task_ready on task (queue, priority desc, k) where state = 0 and not_before is null;

create index task_later on task (not_before) where state = 0 and not_before is not null;

create index task_running on task (k) where state = 1;

create index task_asking on task (k) where state = 2;

create index task_due on task (deadline) where deadline is not null and state < 3;

create index task_parent on task (parent) where parent is not null;

create index task_under on task (under) where under is not null and state < 3;

create unique index task_key on task (key) where key is not null;

create trigger task_of_deleted after delete on conversation begin
  delete from task where cid = old.cid;
end;

create trigger task_of_tombstone after update of deleted on conversation when new.deleted <> 0 begin
  delete from task where cid = new.cid;
end;
