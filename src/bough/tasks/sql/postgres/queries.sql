-- What differs about tasks on Postgres.

-- part: agent_of_config
c.config::json ->> 'agent'

-- part: own_events
-- Own events of a conversation from a place on.
select seq, uuid_send(id), kind, ts, data from event where cid = %(cid)s and seq >= %(first)s

-- part: place
seq

-- part: id_digits
replace(id::text, '-', '')

-- name: live_among
-- Those of some conversations, by number, that have a task which is pending or running.
select cid from task where state < 2 and cid in (select value::bigint from json_array_elements_text(%(cids)s::json));

-- name: event
-- One own event of a conversation.
select seq, uuid_send(id), kind, ts, data from event where cid = %(cid)s and seq = %(seq)s;

-- name: state_changes
-- The latest changes of a conversation's own state, the newest first.
select seq, uuid_send(id), kind, ts, data from event
where cid = %(cid)s and kind = 'StateChanged' order by seq desc limit 8;

-- name: lock_count
-- Makes submissions that count against the same conversation wait for each other, until the transaction ends.
select pg_advisory_xact_lock(1651469671, (%(cid)s::bigint %% 2147483647)::int);

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
