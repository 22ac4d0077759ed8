-- Every row of a conversation has its digests. See sqlite/0003_sealed_rows.sql.

-- A process of the older program that has the store open fails at its next append, instead of leaving the digests behind.
alter table conversation rename column changed to updated;

-- The first 32 bits of SHA-256: the server has no function for CRC-32.
create function digest_of(text) returns int language sql stable strict
  return ('x' || left(encode(sha256(convert_to($1, 'UTF8')), 'hex'), 8))::bit(32)::int;

update conversation c set
  digest = digest_of(row(c.id, c.parent, c.base, c.forked_from, c.forked_at, c.root, c.deleted, c.created, c.imported,
                         c.erased, c.project, c.status, c.owner, c.title, c.tags, c.config, c.lineage)::text),
  place = digest_of(row(c.id, c.head, coalesce(c.updated, c.created), c.generation)::text);
