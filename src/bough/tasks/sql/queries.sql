-- Statements about tasks that SQLite and Postgres share; see `bough.events.queries`. A row is always the 22 columns of
-- `rows.TaskRow`, in its order.

-- part: select_row
-- Tasks with the ids of their conversation and of its parent.
select t.k, uuid_send(t.id), t.cid, uuid_send(c.id), t.format, t.state, t.version, t.attempts, t.max_attempts,
       t.priority, t.queue, t.not_before, t.deadline, t.first, t.last, t.parent, uuid_send(p.id), t.call, t.under,
       t.key, t.agent, t.job
from task t join conversation c on c.cid = t.cid left join conversation p on p.cid = t.parent

-- name: row
-- A task by its id.
{select_row}
where t.id = :id;

-- name: row_of_key
-- The task that a submission with this idempotency key made.
{select_row}
where t.key = :key;

-- name: row_live
-- The task of a conversation that has not ended; there is at most one.
{select_row}
where t.cid = :cid and t.state < 3;

-- name: row_latest
-- The latest task of a conversation.
{select_row}
where t.cid = :cid order by t.k desc limit 1;

-- name: around
-- Tasks that run some conversations, or were started by them, the oldest first: id, conversation, parent, state, agent.
select uuid_send(id), cid, parent, state, agent from task
where cid in (select value::bigint from json_array_elements_text(:cids::json))
   or parent in (select value::bigint from json_array_elements_text(:cids::json)) order by k;

-- name: page
-- Tasks that match, the newest first, from a place on. A task that names no agent runs that of its conversation.
{select_row}
where (:before::bigint is null or t.k < :before)
  and (:states::text is null or t.state in (select value::int from json_array_elements_text(:states::json)))
  and (:agent::text is null or t.agent = :agent
       or t.agent is null and {agent_of_config} = :agent)
  and (:queue::text is null or t.queue = :queue)
  and (:parent::uuid is null or p.id = :parent)
  and (:conversation::uuid is null or c.id = :conversation)
  and (:root::uuid is null or coalesce(c.root, c.cid) = (select r.cid from conversation r where r.id = :root))
  and (:owner::text is null or c.owner = :owner)
  and (not :unowned::bool or c.owner is null)
order by t.k desc limit :limit;

-- name: rows_in_state
-- Tasks in a state, the oldest first.
{select_row}
where t.state = :state and t.k > :after order by t.k limit :limit;

-- name: rows_under
-- Tasks that have not ended and were started by a run of task `k`.
{select_row}
where t.under = :k and t.state < 3 order by t.k;

-- name: rows_of_parent
-- Tasks that a conversation started, the oldest first.
{select_row}
where t.parent = :parent order by t.k;

-- name: insert
insert into task (id, cid, format, state, version, attempts, max_attempts, priority, queue, not_before, deadline,
                  first, last, parent, call, under, key, agent, job)
values (:id, :cid, :format, :state, :version, :attempts, :max_attempts, :priority, :queue, :not_before, :deadline,
        :first, :last, :parent, :call, :under, :key, :agent, :job)
returning k;

-- name: move
-- A transition: made only from the state and the version that were looked at.
update task set state = :state, version = version + 1, attempts = :attempts, not_before = :not_before, last = :last,
                job = :job
where k = :k and state = :was and version = :version
returning version;

-- name: take_over
-- Another owner goes on with a running task; no transition.
update task set attempts = attempts + 1 where k = :k and state = 1 and version = :version returning attempts;

-- name: set_job
update task set job = :job where k = :k;

-- name: put_off
-- A pending task that cannot run now.
update task set not_before = :not_before where k = :k and state = 0;

-- name: hold_back
-- The pending tasks of an owner that nobody's run waits for.
update task set not_before = :not_before where state = 0 and not_before is null and parent is null
and exists (select 1 from conversation c where c.cid = task.cid and c.owner is not distinct from :owner);

-- name: forget
-- A row whose conversation is gone.
delete from task where k = :k;

-- name: is_living
-- Whether a conversation is there and not deleted.
select 1 from conversation where cid = :cid and not deleted;

-- name: ready
-- The next `limit` tasks of a queue: highest priority first, then oldest. The index `task_ready` has the same order and
-- only tasks that can be claimed.
select k, priority, uuid_send(id) from task
where queue = :queue and state = 0 and not_before is null and format <= :format
order by priority desc, k limit :limit;

-- name: ready_queues
-- Queues in which a task waits.
select distinct queue from task where state = 0 and not_before is null;

-- name: make_ready
-- Tasks whose time has come, at most 100 at once.
update task set not_before = null
where k in (select k from task where state = 0 and not_before <= :now order by not_before limit 100
            for update skip locked)
returning k;

-- name: earliest
-- The earliest time at which a waiting task may start.
select min(not_before) from task where state = 0 and not_before is not null;

-- name: running
-- Running tasks with the lease of their conversation, for finding those whose worker is gone.
select uuid_send(t.id), t.queue, l.owner, l.expires from task t left join lease l on l.cid = t.cid
where t.state = 1 and t.format <= :format order by t.k;

-- name: due
-- Tasks whose deadline has passed.
select uuid_send(id) from task where deadline <= :now and state < 3 order by deadline limit 100;

-- name: decided
-- Tasks that ask for something although their conversation waits for nothing any more.
select uuid_send(t.id) from task t join conversation c on c.cid = t.cid
where t.state = 2 and coalesce(c.status, 'idle') <> 'waiting_for_confirmation' order by t.k limit 100;

-- name: orphans
-- Tasks that have not ended although the task they were started under was cancelled, or ended and has a parent itself,
-- or failed and its deadline has passed.
select uuid_send(t.id) from task t join task u on u.k = t.under
where t.under is not null and t.state < 3 and (u.state = 5 or (u.state > 2 and u.parent is not null)
                                             or (u.state = 4 and u.deadline <= :now))
order by t.k limit 100;

-- name: states
-- Where some tasks stand.
select k, state, version, not_before from task
where k in (select value::bigint from json_array_elements_text(:ks::json));

-- name: open_ids
-- Every task that has not ended, the youngest first.
select uuid_send(t.id) from task t join conversation c on c.cid = t.cid
where t.state < 3 and (:owner::text is null or c.owner = :owner) order by t.k desc;

-- name: counts
-- How many tasks are in each state.
select state, count(*) from task group by state order by state;

-- name: spent
-- What a conversation and those that it started, and these started, used in all, and how many there are below it.
with recursive below (cid) as (
  select :cid::bigint
  union
  select t.cid from below join task t on t.parent = below.cid)
select (select count(*) - 1 from below),
       sum(u.requests)::bigint, sum(u.input_tokens)::bigint, sum(u.output_tokens)::bigint,
       sum(u.cache_read_tokens)::bigint, sum(u.cache_write_tokens)::bigint, sum(u.cost_usd), sum(u.unpriced)::bigint
from below join conversation c on c.cid = below.cid left join usage_day u on u.conversation = c.id;

-- name: depth
-- How many conversations are above one, each having started the next.
with recursive above (cid, level) as (
  select :cid::bigint, 0
  union
  select t.parent, level + 1 from above join task t on t.cid = above.cid where t.parent is not null)
select max(level) from above;

-- name: children_running
-- Pending tasks that a conversation started and that may run now, in their order.
select uuid_send(id) from task where parent = :parent and state = 0 and not_before is null and format <= :format
order by priority desc, k limit :limit;

-- name: latest
select uuid_send(id) from task order by k desc limit 1;

-- name: events
-- Own events of a conversation that can be events of a task, and its interrupted calls, the latest first.
{own_events} and kind in ('TaskChanged', 'TaskNoted', 'ToolCalled', 'ToolInterrupted', 'ModelResponded')
order by {place} desc limit :limit;

-- name: spending
-- Own events of a conversation, from a place on, that say what was used.
{own_events}
  and kind in ('ModelResponded', 'Condensed', 'UsageAdded', 'ToolReturned', 'ToolFailed', 'TaskEnded')
order by {place};

-- name: changes
-- Own transitions of a conversation from a place on.
{own_events} and kind = 'TaskChanged' order by {place};

-- name: named
-- Tasks whose id begins or ends with some hexadecimal digits.
select uuid_send(id) from task
where {id_digits} like :digits || '%' or {id_digits} like '%' || :digits order by k limit 6;
