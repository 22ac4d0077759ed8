-- What an erasure removed. The row stays: it proves the erasure, and makes it repeatable.
create table erasure (
  id blob primary key,          -- of the conversation
  receipt text not null         -- JSON
) strict, without rowid;
