-- See sqlite/0001_triggers.sql: bytes go with the last event that names them.

create function blob_delete() returns trigger language plpgsql as $$
begin
  delete from blob_use where cid = old.cid;
  return null;
end $$;

create trigger blob_deleted after delete on conversation for each row execute function blob_delete();

create function blob_trim() returns trigger language plpgsql as $$
begin
  delete from blob_use where cid = new.cid and seq >= new.head;
  return null;
end $$;

create trigger blob_trimmed after update of parent on conversation for each row execute function blob_trim();

create function blob_erase() returns trigger language plpgsql as $$
begin
  delete from blob_use where cid = new.cid;
  return null;
end $$;

create trigger blob_erased after update of erased on conversation for each row execute function blob_erase();

create function blob_drop() returns trigger language plpgsql as $$
begin
  delete from blob where sha256 = old.sha256 and not exists (select 1 from blob_use where sha256 = old.sha256);
  return null;
end $$;

create trigger blob_unused after delete on blob_use for each row execute function blob_drop();
