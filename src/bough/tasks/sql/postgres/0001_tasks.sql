-- Tasks beside the log: one narrow row each. See sqlite/0001_tasks.sql for the columns.

create table task (
  k bigint generated always as identity primary key,
  id uuid not null unique,
  cid bigint not null references conversation (cid) on delete cascade,
  format smallint not null,
  state smallint not null,
  version integer not null,
  attempts integer not null,
  max_attempts integer not null,
  priority integer not null,
  queue text not null,
  not_before bigint,
  deadline bigint,
  first bigint not null,
  last bigint not null,
  parent bigint,
  call text,
  under bigint,
  key text,
  agent text,
  job bigint
) with (fillfactor = 70);

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

create function task_of_tombstone() returns trigger language plpgsql as $$
begin
  delete from task where cid = new.cid;
  return null;
end $$;

create trigger task_of_tombstone after update of deleted on conversation
  for each row when (new.deleted) execute function task_of_tombstone();
