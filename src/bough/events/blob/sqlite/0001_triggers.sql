-- The tables `blob` and `blob_use` are the store's own, of its schema 2; bytes go with the last event that names them.

create trigger blob_deleted after delete on conversation
begin
  delete from blob_use where cid = old.cid;
end;

-- Only a trim sets `parent`: events from `head` on are gone.
create trigger blob_trimmed after update of parent on conversation
begin
  delete from blob_use where cid = new.cid and seq >= new.head;
end;

create trigger blob_erased after update of erased on conversation
begin
  delete from blob_use where cid = new.cid;
end;

create trigger blob_unused after delete on blob_use
begin
  delete from blob where sha256 = old.sha256 and not exists (select 1 from blob_use where sha256 = old.sha256);
end;
