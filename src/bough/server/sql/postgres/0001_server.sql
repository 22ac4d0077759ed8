create table server_tenant (
  id text primary key,
  created bigint not null,      -- microseconds since 1970
  disabled bigint               -- when; null: in use
);

create table server_key (
  id text primary key,           -- 8 hexadecimal digits, part of the key's text
  tenant text not null,
  name text not null,
  digest bytea not null,          -- SHA-256 of the whole text: 256 random bits need no slow hash
  role text not null,
  scopes text not null,          -- JSON list
  created bigint not null,
  expires bigint,               -- null: never
  used bigint,                  -- at most a minute behind
  revoked bigint
);
create index server_key_tenant on server_key (tenant);

create table server_sealed (
  cid bigint not null references conversation (cid) on delete cascade,
  name text not null,
  key_id text not null,          -- which key sealed it
  nonce bytea not null,
  ciphertext bytea not null,
  created bigint not null,
  primary key (cid, name)
);
create table server_sealed_key (
  key_id text primary key,
  created bigint not null
);
create function server_sealed_erase() returns trigger language plpgsql as $$
begin
  delete from server_sealed where cid = new.cid;
  return null;
end $$;
create trigger server_sealed_erase after update of erased on conversation
  for each row execute function server_sealed_erase();
