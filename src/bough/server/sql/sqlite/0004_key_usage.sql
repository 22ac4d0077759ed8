create table server_payer (
  task blob primary key,         -- its id
  cid integer not null,          -- conversation.cid
  key text not null              -- server_key.id: who asked for it pays for it, and for what its sub-agents use
) strict, without rowid;
create index server_payer_cid on server_payer (cid);
create trigger server_payer_delete after delete on conversation begin
  delete from server_payer where cid = old.cid;
end;

create table server_key_usage (
  key text not null,
  day integer not null,          -- UTC, days since 1970
  conversation blob not null,    -- its id: runs beside each other write rows of their own
  tokens integer not null,
  cost_usd real not null,
  primary key (key, day, conversation)
) strict, without rowid;
