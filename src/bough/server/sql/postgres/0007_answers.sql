-- The answers of chat completions, by the digest of the messages up to and including each.
create table server_answer (
  caller text not null,          -- server_key.id; empty on a server without keys
  agent text not null,
  digest bytea not null,
  cid bigint not null references conversation (cid) on delete cascade,
  head bigint not null,          -- how many events the conversation had after the answer
  created bigint not null,
  primary key (caller, agent, digest, cid, head)
);
create index server_answer_cid on server_answer (cid);
create function server_answer_erase() returns trigger language plpgsql as $$
begin
  delete from server_answer where cid = new.cid;
  return null;
end $$;
create trigger server_answer_erase after update of erased on conversation
  for each row execute function server_answer_erase();
