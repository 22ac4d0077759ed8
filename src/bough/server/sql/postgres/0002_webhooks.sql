create table server_webhook (
  id text primary key,
  tenant text not null,
  kind text not null,            -- events, a2a
  target text,                   -- the task of an A2A client; null for events
  url text not null,
  kinds text not null,           -- JSON list
  key_id text not null,          -- which key sealed its secret
  nonce bytea not null,
  ciphertext bytea not null,
  created bigint not null
);
create index server_webhook_tenant on server_webhook (tenant);

create table server_delivery (
  id bigint generated always as identity primary key,
  webhook text not null,
  body text not null,
  attempts bigint not null,
  due bigint not null           -- microseconds since 1970; later while somebody makes it
);
create index server_delivery_due on server_delivery (due);
create index server_delivery_webhook on server_delivery (webhook);
