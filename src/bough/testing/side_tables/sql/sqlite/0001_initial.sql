-- A note to a conversation, and a counter: what the contract needs.

create table note (
  k integer primary key,
  id blob not null,
  cid integer not null,
  text text not null,
  at integer not null
) strict;

create unique index note_id on note (id);

create index note_cid on note (cid);

create trigger note_gone after delete on conversation begin
  delete from note where cid = old.cid;
end;

create trigger note_buried after update of deleted on conversation when new.deleted and not old.deleted begin
  delete from note where cid = new.cid;
end;
