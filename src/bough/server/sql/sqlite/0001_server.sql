create table server_tenant (
  id text primary key,
  created integer not null,      -- microseconds since 1970
  disabled integer               -- when; null: in use
) strict, without rowid;

create table server_key (
  id text primary key,           -- 8 hexadecimal digits, part of the key's text
  tenant text not null,
  name text not null,
  digest blob not null,          -- SHA-256 of the whole text: 256 random bits need no slow hash
  role text not null,
  scopes text not null,          -- JSON list
  created integer not null,
  expires integer,               -- null: never
  used integer,                  -- at most a minute behind
  revoked integer
) strict, without rowid;
create index server_key_tenant on server_key (tenant);

create table server_sealed (
  cid integer not null,          -- conversation.cid
  name text not null,
  key_id text not null,          -- which key sealed it
  nonce blob not null,
  ciphertext blob not null,
  created integer not null,
  primary key (cid, name)
) strict, without rowid;
create table server_sealed_key (
  key_id text primary key,
  created integer not null
) strict, without rowid;
create trigger server_sealed_delete after delete on conversation begin
  delete from server_sealed where cid = old.cid;
end;
create trigger server_sealed_erase after update of erased on conversation begin
  delete from server_sealed where cid = new.cid;
end;
