-- Statements of the contract's own package; see `bough.events.queries`.

-- name: insert
insert into note (id, cid, text, at) values (:id, :cid, :text, :at);

-- name: of
select id, text, at from note where cid = :cid order by k;

-- name: count
select count(*) from note;

-- name: raise
update note set at = at + 1 where id = :id returning at;
