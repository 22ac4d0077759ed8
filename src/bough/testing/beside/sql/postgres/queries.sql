-- Statements of the contract's own package.

-- name: insert
insert into note (id, cid, text, at) values (%(id)s, %(cid)s, %(text)s, %(at)s);

-- name: of
select id, text, at from note where cid = %(cid)s order by k;

-- name: count
select count(*) from note;

-- name: raise
update note set at = at + 1 where id = %(id)s returning at;
