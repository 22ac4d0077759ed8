-- Every row of a conversation has its digests: `digest` of what appends do not change, `place` of the rest.

-- A process of the older program that has the store open fails at its next append, instead of leaving the digests behind.
alter table conversation rename column changed to updated;

update conversation set
  digest = digest_of(id, parent, base, forked_from, forked_at, root, deleted, created, imported, erased,
                     cast(project as blob), cast(status as blob), cast(owner as blob), cast(title as blob),
                     cast(tags as blob), cast(config as blob), cast(lineage as blob)),
  place = digest_of(id, head, ifnull(updated, created), generation);
