-- Folds of logs, kept beside them. See sqlite/0001_initial.sql for the columns.

create table snapshot (
  cid bigint not null references conversation (cid) on delete cascade,
  seq bigint not null,
  fold text not null,
  turns bigint not null,
  digest bigint not null,
  state bytea not null,
  primary key (cid, seq)
);

-- It is compressed already.
alter table snapshot alter column state set storage external;

create function snapshot_trim() returns trigger language plpgsql as $$
begin
  delete from snapshot where cid = new.cid and seq > new.head;
  return null;
end $$;

create trigger snapshot_trimmed after update of parent on conversation
for each row execute function snapshot_trim();

create function snapshot_erase() returns trigger language plpgsql as $$
begin
  delete from snapshot s using conversation c
  where c.cid = s.cid and coalesce(c.root, c.cid) = coalesce(new.root, new.cid);
  return null;
end $$;

create trigger snapshot_erased after update of erased on conversation
for each row execute function snapshot_erase();
