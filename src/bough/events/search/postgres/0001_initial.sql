-- The words of messages, and which message each document is. See sqlite/0001_initial.sql for the columns.

create table search_doc (
  id bigint primary key,
  cid bigint not null references conversation (cid) on delete cascade,
  seq bigint not null,
  part int not null,
  words tsvector not null,
  unique (cid, seq, part)
);

-- Without a list of pending entries, which every search would read: documents come in batches anyway.
create index search_doc_words on search_doc using gin (words) with (fastupdate = off);

-- Without a reference to the conversation: that would lock its row once more in every append.
create table search_queue (
  cid bigint not null,
  seq bigint not null,
  primary key (cid, seq)
);

create table search_build (
  cid bigint not null,
  seq bigint not null
);

insert into search_build values (0, 0);

create function search_enqueue() returns trigger language plpgsql as $$
begin
  insert into search_queue (cid, seq) values (new.cid, new.seq) on conflict do nothing;
  return null;
end $$;

create trigger search_queued after insert on event
for each row when (new.kind in ('UserMessage', 'ModelResponded')) execute function search_enqueue();

create function search_delete() returns trigger language plpgsql as $$
begin
  delete from search_queue where cid = old.cid;
  return null;
end $$;

create trigger search_deleted after delete on conversation for each row execute function search_delete();

create function search_trim() returns trigger language plpgsql as $$
begin
  delete from search_doc where cid = new.cid and seq >= new.head;
  delete from search_queue where cid = new.cid and seq >= new.head;
  return null;
end $$;

create trigger search_trimmed after update of parent on conversation for each row execute function search_trim();

create function search_erase() returns trigger language plpgsql as $$
begin
  delete from search_doc where cid = new.cid;
  delete from search_queue where cid = new.cid;
  return null;
end $$;

create trigger search_erased after update of erased on conversation for each row execute function search_erase();
