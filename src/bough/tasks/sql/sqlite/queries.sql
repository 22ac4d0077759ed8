-- What differs about tasks on SQLite.

-- part: agent_of_config
case when json_valid(c.config) then c.config ->> '$.agent' end

-- part: own_events
-- Own events of a conversation from a place on.
select k & 4294967295, id, kind, ts, data from event where k >= :cid << 32 | :first and k < (:cid + 1) << 32

-- part: place
k

-- part: id_digits
lower(hex(id))

-- name: live_among
-- Those of some conversations, by number, that have a task which is pending or running.
select cid from task where state < 2 and cid in (select value from json_each(:cids));

-- name: event
-- One own event of a conversation.
select k & 4294967295, id, kind, ts, data from event where k = :cid << 32 | :seq;

-- name: state_changes
-- The latest changes of a conversation's own state, the newest first.
select k & 4294967295, id, kind, ts, data from event
where k >= :cid << 32 and k < (:cid + 1) << 32 and kind = 'StateChanged' order by k desc limit 8;

-- name: lock_count
-- Makes submissions that count against the same conversation wait for each other; all of them do, by the one writer.
select :cid;
