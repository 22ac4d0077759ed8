-- Every statement about tasks on Postgres. A row is always the 22 columns of `rows.TaskRow`, in its order.

-- name: row
-- A task by its id.
select t.k, uuid_send(t.id), t.cid, uuid_send(c.id), t.format, t.state, t.version, t.attempts, t.max_attempts, t.priority, t.queue,
       t.not_before, t.deadline, t.first, t.last, t.parent, uuid_send(p.id), t.call, t.under, t.key, t.agent, t.job
from task t join conversation c on c.cid = t.cid left join conversation p on p.cid = t.parent
where t.id = %(id)s;

-- name: row_of_key
-- The task that a submission with this idempotency key made.
select t.k, uuid_send(t.id), t.cid, uuid_send(c.id), t.format, t.state, t.version, t.attempts, t.max_attempts, t.priority, t.queue,
       t.not_before, t.deadline, t.first, t.last, t.parent, uuid_send(p.id), t.call, t.under, t.key, t.agent, t.job
from task t join conversation c on c.cid = t.cid left join conversation p on p.cid = t.parent
where t.key = %(key)s;

-- name: row_live
-- The task of a conversation that has not ended; there is at most one.
select t.k, uuid_send(t.id), t.cid, uuid_send(c.id), t.format, t.state, t.version, t.attempts, t.max_attempts, t.priority, t.queue,
       t.not_before, t.deadline, t.first, t.last, t.parent, uuid_send(p.id), t.call, t.under, t.key, t.agent, t.job
from task t join conversation c on c.cid = t.cid left join conversation p on p.cid = t.parent
where t.cid = %(cid)s and t.state < 3;

-- name: row_latest
-- The latest task of a conversation.
select t.k, uuid_send(t.id), t.cid, uuid_send(c.id), t.format, t.state, t.version, t.attempts, t.max_attempts, t.priority, t.queue,
       t.not_before, t.deadline, t.first, t.last, t.parent, uuid_send(p.id), t.call, t.under, t.key, t.agent, t.job
from task t join conversation c on c.cid = t.cid left join conversation p on p.cid = t.parent
where t.cid = %(cid)s order by t.k desc limit 1;

-- name: live_among
-- Those of some conversations, by number, that have a task which is pending or running.
select cid from task where state < 2 and cid in (select value::bigint from json_array_elements_text(%(cids)s::json));

-- name: around
-- Tasks that run some conversations, or were started by them, the oldest first: id, conversation, parent, state, agent.
select uuid_send(id), cid, parent, state, agent from task
where cid in (select value::bigint from json_array_elements_text(%(cids)s::json))
   or parent in (select value::bigint from json_array_elements_text(%(cids)s::json)) order by k;

-- name: page
-- Tasks that match, the newest first, from a place on. A task that names no agent runs that of its conversation.
select t.k, uuid_send(t.id), t.cid, uuid_send(c.id), t.format, t.state, t.version, t.attempts, t.max_attempts, t.priority, t.queue,
       t.not_before, t.deadline, t.first, t.last, t.parent, uuid_send(p.id), t.call, t.under, t.key, t.agent, t.job
from task t join conversation c on c.cid = t.cid left join conversation p on p.cid = t.parent
where (%(before)s::bigint is null or t.k < %(before)s)
  and (%(states)s::text is null or t.state in (select value::int from json_array_elements_text(%(states)s::json)))
  and (%(agent)s::text is null or t.agent = %(agent)s
       or t.agent is null and c.config::json ->> 'agent' = %(agent)s)
  and (%(queue)s::text is null or t.queue = %(queue)s)
  and (%(parent)s::uuid is null or p.id = %(parent)s)
  and (%(conversation)s::uuid is null or c.id = %(conversation)s)
  and (%(root)s::uuid is null or coalesce(c.root, c.cid) = (select r.cid from conversation r where r.id = %(root)s))
  and (%(owner)s::text is null or c.owner = %(owner)s)
  and (not %(unowned)s::bool or c.owner is null)
order by t.k desc limit %(limit)s;

-- name: rows_in_state
-- Tasks in a state, the oldest first.
select t.k, uuid_send(t.id), t.cid, uuid_send(c.id), t.format, t.state, t.version, t.attempts, t.max_attempts, t.priority, t.queue,
       t.not_before, t.deadline, t.first, t.last, t.parent, uuid_send(p.id), t.call, t.under, t.key, t.agent, t.job
from task t join conversation c on c.cid = t.cid left join conversation p on p.cid = t.parent
where t.state = %(state)s and t.k > %(after)s order by t.k limit %(limit)s;

-- name: rows_under
-- Tasks that have not ended and were started by a run of task `k`.
select t.k, uuid_send(t.id), t.cid, uuid_send(c.id), t.format, t.state, t.version, t.attempts, t.max_attempts, t.priority, t.queue,
       t.not_before, t.deadline, t.first, t.last, t.parent, uuid_send(p.id), t.call, t.under, t.key, t.agent, t.job
from task t join conversation c on c.cid = t.cid left join conversation p on p.cid = t.parent
where t.under = %(k)s and t.state < 3 order by t.k;

-- name: rows_of_parent
-- Tasks that a conversation started, the oldest first.
select t.k, uuid_send(t.id), t.cid, uuid_send(c.id), t.format, t.state, t.version, t.attempts, t.max_attempts, t.priority, t.queue,
       t.not_before, t.deadline, t.first, t.last, t.parent, uuid_send(p.id), t.call, t.under, t.key, t.agent, t.job
from task t join conversation c on c.cid = t.cid left join conversation p on p.cid = t.parent
where t.parent = %(parent)s order by t.k;

-- name: insert
insert into task (id, cid, format, state, version, attempts, max_attempts, priority, queue, not_before, deadline,
                  first, last, parent, call, under, key, agent, job)
values (%(id)s, %(cid)s, %(format)s, %(state)s, %(version)s, %(attempts)s, %(max_attempts)s, %(priority)s, %(queue)s, %(not_before)s, %(deadline)s,
        %(first)s, %(last)s, %(parent)s, %(call)s, %(under)s, %(key)s, %(agent)s, %(job)s)
returning k;

-- name: move
-- A transition: made only from the state and the version that were looked at.
update task set state = %(state)s, version = version + 1, attempts = %(attempts)s, not_before = %(not_before)s, last = %(last)s,
                job = %(job)s
where k = %(k)s and state = %(was)s and version = %(version)s
returning version;

-- name: take_over
-- Another owner goes on with a running task; no transition.
update task set attempts = attempts + 1 where k = %(k)s and state = 1 and version = %(version)s returning attempts;

-- name: set_job
update task set job = %(job)s where k = %(k)s;

-- name: put_off
-- A pending task that cannot run now.
update task set not_before = %(not_before)s where k = %(k)s and state = 0;

-- name: hold_back
-- The pending tasks of an owner that nobody's run waits for.
update task set not_before = %(not_before)s where state = 0 and not_before is null and parent is null
and exists (select 1 from conversation c where c.cid = task.cid and c.owner is not distinct from %(owner)s);

-- name: forget
-- A row whose conversation is gone.
delete from task where k = %(k)s;

-- name: is_living
-- Whether a conversation is there and not deleted.
select 1 from conversation where cid = %(cid)s and not deleted;

-- name: ready
-- The front of a queue: `limit` rows from an index that holds nothing but what can be claimed.
select k, priority, uuid_send(id) from task
where queue = %(queue)s and state = 0 and not_before is null and format <= %(format)s
order by priority desc, k limit %(limit)s;

-- name: ready_queues
-- Queues in which something waits, for a look at what is next in any of them.
select distinct queue from task where state = 0 and not_before is null;

-- name: make_ready
-- Tasks whose time has come, at most 100 at once.
update task set not_before = null
where k in (select k from task where state = 0 and not_before <= %(now)s order by not_before limit 100
            for update skip locked)
returning k;

-- name: earliest
-- When the next task comes due that may not start yet.
select min(not_before) from task where state = 0 and not_before is not null;

-- name: running
-- Running tasks with the lease of their conversation, for finding those whose worker is gone.
select uuid_send(t.id), t.queue, l.owner, l.expires from task t left join lease l on l.cid = t.cid
where t.state = 1 and t.format <= %(format)s order by t.k;

-- name: due
-- Tasks whose deadline has passed.
select uuid_send(id) from task where deadline <= %(now)s and state < 3 order by deadline limit 100;

-- name: decided
-- Tasks that ask for something although their conversation waits for nothing any more.
select uuid_send(t.id) from task t join conversation c on c.cid = t.cid
where t.state = 2 and coalesce(c.status, 'idle') <> 'waiting_for_confirmation' order by t.k limit 100;

-- name: orphans
-- Tasks that have not ended although the task they were started under was cancelled, or ended and has a parent itself,
-- or failed and its deadline has passed.
select uuid_send(t.id) from task t join task u on u.k = t.under
where t.under is not null and t.state < 3 and (u.state = 5 or (u.state > 2 and u.parent is not null)
                                             or (u.state = 4 and u.deadline <= %(now)s))
order by t.k limit 100;

-- name: states
-- Where some tasks stand.
select k, state, version, not_before from task where k in (select value::bigint from json_array_elements_text(%(ks)s::json));

-- name: open_ids
-- Every task that has not ended, the youngest first.
select uuid_send(t.id) from task t join conversation c on c.cid = t.cid
where t.state < 3 and (%(owner)s::text is null or c.owner = %(owner)s) order by t.k desc;

-- name: counts
-- How many tasks are in each state.
select state, count(*) from task group by state order by state;

-- name: event
-- One own event of a conversation.
select seq, uuid_send(id), kind, ts, data from event where cid = %(cid)s and seq = %(seq)s;

-- name: events
-- Own events of a conversation that can be events of a task, the latest first.
select seq, uuid_send(id), kind, ts, data from event
where cid = %(cid)s and seq >= %(first)s and kind in ('TaskChanged', 'TaskNoted', 'ToolCalled', 'ModelResponded')
order by seq desc limit %(limit)s;

-- name: spending
-- Own events of a conversation, from a place on, that say what was used.
select seq, uuid_send(id), kind, ts, data from event
where cid = %(cid)s and seq >= %(first)s
  and kind in ('ModelResponded', 'Condensed', 'UsageAdded', 'ToolReturned', 'ToolFailed', 'TaskEnded')
order by seq;

-- name: changes
-- Own transitions of a conversation from a place on.
select seq, uuid_send(id), kind, ts, data from event
where cid = %(cid)s and seq >= %(first)s and kind = 'TaskChanged' order by seq;

-- name: state_changes
-- The latest changes of a conversation's own state, the newest first.
select seq, uuid_send(id), kind, ts, data from event
where cid = %(cid)s and kind = 'StateChanged' order by seq desc limit 8;

-- name: spent
-- What a conversation and those that it started, and these started, used in all, and how many there are below it.
with recursive below (cid) as (
  select %(cid)s::bigint
  union
  select t.cid from below join task t on t.parent = below.cid)
select (select count(*) - 1 from below),
       sum(u.requests)::bigint, sum(u.input_tokens)::bigint, sum(u.output_tokens)::bigint,
       sum(u.cache_read_tokens)::bigint, sum(u.cache_write_tokens)::bigint, sum(u.cost_usd), sum(u.unpriced)::bigint
from below join conversation c on c.cid = below.cid left join usage_day u on u.conversation = c.id;

-- name: lock_count
-- Makes submissions that count against the same conversation wait for each other, until the transaction ends.
select pg_advisory_xact_lock(1651469671, (%(cid)s::bigint %% 2147483647)::int);

-- name: depth
-- How many conversations are above one, each having started the next.
with recursive above (cid, level) as (
  select %(cid)s::bigint, 0
  union
  select t.parent, level + 1 from above join task t on t.cid = above.cid where t.parent is not null)
select max(level) from above;

-- name: children_running
-- Pending tasks that a conversation started and that may run now, in their order.
select uuid_send(id) from task where parent = %(parent)s and state = 0 and not_before is null and format <= %(format)s
order by priority desc, k limit %(limit)s;

-- name: named
-- Tasks whose id begins or ends with some hexadecimal digits.
select uuid_send(id) from task where replace(id::text, '-', '') like %(digits)s || '%%' or replace(id::text, '-', '') like '%%' || %(digits)s order by k limit 6;

-- name: latest
select uuid_send(id) from task order by k desc limit 1;

-- name: undelivered
-- Tasks that wait, and whose job is gone, has ended, or was taken by a worker of the engine.
select uuid_send(t.id), t.job, j.status is not null and j.status = 'doing'
from task t left join procrastinate_jobs j on j.id = t.job
where t.state = 0 and t.format <= %(format)s and (j.status is null or j.status <> 'todo')
order by t.k limit 100;

-- name: forget_jobs
-- Jobs that their task does not name any more, unless a living worker of the engine has them: it ends them itself.
delete from procrastinate_jobs where id in (
  select j.id from procrastinate_jobs j left join procrastinate_workers w on w.id = j.worker_id
  where j.task_name = 'bough.run'
    and (j.status <> 'doing' or w.id is null or w.last_heartbeat < now() - interval '30 s')
    and not exists (
      select 1 from task t
      where t.job = j.id
        and t.id = case when j.args ->> 'task_id' ~ '^[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}$'
                        then (j.args ->> 'task_id')::uuid end)
  order by j.id limit 100 for update of j skip locked)
returning id;
