-- See sqlite/0001_erasure.sql.
create table erasure (
  id uuid primary key,
  receipt text not null
);
