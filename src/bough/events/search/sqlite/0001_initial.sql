-- The words of messages, and which message each document is: made again from events whenever it is missing. Messages
-- wait in a queue, which costs an append one narrow row, and are indexed by the next search.

create table search_doc (
  id integer primary key,       -- microseconds << 10 | a number, so that the order of ids is the order of time
  k integer not null,           -- cid << 32 | seq of the message
  part integer not null         -- of a long message; its parts have consecutive ids
) strict;

create unique index search_doc_message on search_doc (k, part);

-- The words come from `bough.events.search.words`, separated by spaces; @ begins the word that names the owner. A table
-- with its content, not without: older SQLite cannot delete from those, and erasing has to leave nothing.
create virtual table search_words using fts5 (words, tokenize = "ascii tokenchars '_@'", columnsize = 0);

create table search_queue (
  k integer primary key
) strict;

create table search_build (
  cid integer not null,
  seq integer not null
) strict;

insert into search_build values (0, 0);

create trigger search_queued after insert on event when new.kind in ('UserMessage', 'ModelResponded')
begin
  insert or ignore into search_queue values (new.k);
end;

create trigger search_deleted after delete on conversation
begin
  delete from search_words where rowid in (
    select id from search_doc where k >= old.cid << 32 and k < (old.cid + 1) << 32);
  delete from search_doc where k >= old.cid << 32 and k < (old.cid + 1) << 32;
  delete from search_queue where k >= old.cid << 32 and k < (old.cid + 1) << 32;
end;

-- Only a trim sets `parent`: events from `head` on are gone.
create trigger search_trimmed after update of parent on conversation
begin
  delete from search_words where rowid in (
    select id from search_doc where k >= new.cid << 32 | new.head and k < (new.cid + 1) << 32);
  delete from search_doc where k >= new.cid << 32 | new.head and k < (new.cid + 1) << 32;
  delete from search_queue where k >= new.cid << 32 | new.head and k < (new.cid + 1) << 32;
end;

-- The words of what was deleted stay in the index until it merges them; erasing merges all of it at once.
create trigger search_erased after update of erased on conversation
begin
  delete from search_words where rowid in (
    select id from search_doc where k >= new.cid << 32 and k < (new.cid + 1) << 32);
  delete from search_doc where k >= new.cid << 32 and k < (new.cid + 1) << 32;
  delete from search_queue where k >= new.cid << 32 and k < (new.cid + 1) << 32;
  insert into search_words (search_words) values ('optimize');
end;
