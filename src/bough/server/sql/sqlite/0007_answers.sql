-- The answers of chat completions, by the digest of the messages up to and including each.
create table server_answer (
  caller text not null,          -- server_key.id; empty on a server without keys
  agent text not null,
  digest blob not null,
  cid integer not null,          -- conversation.cid
  head integer not null,         -- how many events the conversation had after the answer
  created integer not null,
  primary key (caller, agent, digest, cid, head)
) strict, without rowid;
create index server_answer_cid on server_answer (cid);
create trigger server_answer_delete after delete on conversation begin
  delete from server_answer where cid = old.cid;
end;
create trigger server_answer_erase after update of erased on conversation begin
  delete from server_answer where cid = new.cid;
end;
