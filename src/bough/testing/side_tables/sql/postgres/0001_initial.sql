-- A note to a conversation, and a counter: what the contract needs.

create table note (
  k bigint generated always as identity primary key,
  id uuid not null,
  cid bigint not null references conversation (cid) on delete cascade,
  text text not null,
  at bigint not null
);

create unique index note_id on note (id);

create index note_cid on note (cid);

create function note_bury() returns trigger language plpgsql as $$
begin
  delete from note where cid = new.cid;
  return null;
end $$;

create trigger note_buried after update of deleted on conversation
for each row when (new.deleted and not old.deleted) execute function note_bury();
