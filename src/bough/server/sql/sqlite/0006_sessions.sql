alter table server_key add column parent text;   -- server_key.id: the key that opened this session; null for keys
create index server_key_parent on server_key (parent);
