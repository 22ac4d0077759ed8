-- Statements about keys, tenants, webhooks and usage that SQLite and Postgres share; see `bough.events.queries`.

-- name: add_tenant
-- A tenant is made by its first key.
insert into server_tenant (id, created, disabled) values (:id, :now, null) on conflict (id) do nothing;

-- name: tenants
select id, created, disabled from server_tenant order by id;

-- name: set_disabled
update server_tenant set disabled = :disabled where id = :id returning id;

-- name: add_key
insert into server_key (id, tenant, name, digest, role, scopes, created, expires, used, revoked)
values (:id, :tenant, :label, :digest, :role, :scopes, :now, :expires, null, null);

-- name: key
-- The key or session of an id, with what its tenant and the key of a session say.
select k.tenant, k.name, k.digest, k.role, k.scopes, k.expires, k.revoked, t.disabled, k.parent,
       coalesce(k.used, k.created), p.expires, p.revoked
from server_key k left join server_tenant t on t.id = k.tenant left join server_key p on p.id = k.parent
where k.id = :id;

-- name: add_session
-- A session has the rights of its key.
insert into server_key (id, tenant, name, digest, role, scopes, created, expires, used, revoked, parent)
select :id, tenant, name, :digest, role, scopes, :now, :expires, null, null, id from server_key where id = :parent;

-- name: drop_ended_sessions
delete from server_key where parent = :parent
and (revoked is not null or expires <= :now or coalesce(used, created) <= :idle_since);

-- name: count_sessions
select count(*) from server_key where parent = :parent;

-- name: end_session
update server_key set revoked = :now where id = :id and parent is not null;

-- name: key_made
-- The key that a repeated request is compared with.
select tenant, name, digest, role, scopes, created, expires, revoked from server_key where id = :id;

-- name: keys
-- Keys of one tenant, or of all, the newest first.
select id, tenant, name, role, scopes, created, expires, used, revoked from server_key
where (:tenant::text is null or tenant = :tenant) and parent is null order by created desc, id;

-- name: count_keys
select count(*) from server_key;

-- name: count_tenant_keys
select count(*) from server_key where tenant = :tenant and revoked is null and parent is null;

-- name: revoke
update server_key set revoked = :now where id = :id and (:tenant::text is null or tenant = :tenant) and revoked is null
and parent is null returning id;

-- name: expire
-- A rotated key ends after its grace, or when it would have ended anyway.
update server_key set expires = :expires where id = :id and (expires is null or expires > :expires) returning id;

-- name: touch
update server_key set used = :now where id = :id;

-- name: seal
insert into server_sealed (cid, name, key_id, nonce, ciphertext, created)
values (:cid, :label, :key_id, :nonce, :ciphertext, :now)
on conflict (cid, name) do update set key_id = excluded.key_id, nonce = excluded.nonce,
  ciphertext = excluded.ciphertext, created = excluded.created;

-- name: sealed
select name, key_id, nonce, ciphertext from server_sealed where cid = :cid order by name;

-- name: add_sealing_key
insert into server_sealed_key (key_id, created) values (:key_id, :now) on conflict (key_id) do nothing;

-- name: sealing_keys
select key_id from server_sealed_key order by created;

-- name: count_runs
-- Tasks of an owner's conversations that are pending or running.
select count(*) from task t join conversation c on c.cid = t.cid
where t.state < 2 and c.owner is not distinct from :owner;

-- name: count_running
-- Running tasks of an owner's conversations that no other task started.
select count(*) from task t join conversation c on c.cid = t.cid
where t.state = 1 and t.parent is null and c.owner is not distinct from :owner;

-- name: count_conversations
select count(*) from conversation where owner is not distinct from :owner and not deleted;

-- name: usage
-- What an owner's conversations used between two days, by one of five keys; the most first.
select {usage_key} as key,
       sum(u.requests)::bigint, sum(u.input_tokens)::bigint, sum(u.output_tokens)::bigint,
       sum(u.cache_read_tokens)::bigint, sum(u.cache_write_tokens)::bigint, sum(u.cost_usd)::float8,
       sum(u.unpriced)::bigint
from usage_day u left join conversation c on c.id = u.conversation
     left join conversation r on r.cid = coalesce(c.root, c.cid)
where u.owner is not distinct from :owner and u.day between :first and :last
group by 1 order by sum(u.input_tokens) + sum(u.output_tokens) desc, 1;

-- name: usage_of
-- What one conversation used itself.
select sum(requests)::bigint, sum(input_tokens)::bigint, sum(output_tokens)::bigint, sum(cache_read_tokens)::bigint,
       sum(cache_write_tokens)::bigint, sum(cost_usd)::float8, sum(unpriced)::bigint
from usage_day where conversation = :conversation;

-- name: put_webhook
insert into server_webhook (id, tenant, kind, target, url, kinds, key_id, nonce, ciphertext, created)
values (:id, :tenant, :kind, :target, :url, :kinds, :key_id, :nonce, :ciphertext, :now)
on conflict (id) do update set url = excluded.url, key_id = excluded.key_id, nonce = excluded.nonce,
  ciphertext = excluded.ciphertext
where server_webhook.tenant = excluded.tenant;

-- name: count_webhooks
select count(*) from server_webhook where tenant = :tenant and kind = :kind;

-- name: webhooks
-- Of a tenant and kind, and of one task where it is named.
select id, tenant, kind, target, url, kinds, key_id, nonce, ciphertext, failing, switched_off from server_webhook
where tenant = :tenant and kind = :kind and (:target::text is null or target = :target) order by created, id;

-- name: webhook
select id, tenant, kind, target, url, kinds, key_id, nonce, ciphertext, failing, switched_off
from server_webhook where id = :id;

-- name: webhook_made
-- When a webhook was made: a repeated request is answered with its secret for a day.
select created from server_webhook where id = :id;

-- name: listening
-- Who is told of what happens in a tenant.
select id, kind, target, kinds from server_webhook where tenant = :tenant and switched_off is null;

-- name: note_failure
-- When a webhook failed first, after it took something.
update server_webhook set failing = coalesce(failing, :now) where id = :id returning failing;

-- name: note_success
update server_webhook set failing = null, switched_off = null
where id = :id and (failing is not null or switched_off is not null);

-- name: switch_off
update server_webhook set switched_off = :now where id = :id and switched_off is null;

-- name: remove_webhook
delete from server_webhook where id = :id and tenant = :tenant returning id;

-- name: drop_deliveries
delete from server_delivery where webhook in (select id from server_webhook where id = :webhook and tenant = :tenant);

-- name: add_delivery
insert into server_delivery (webhook, body, attempts, due) values (:webhook, :body, 0, :now);

-- name: drop_oldest
-- What is due to a webhook is bounded: the oldest go.
delete from server_delivery where webhook = :webhook and id <= (
  select max(id) from server_delivery where webhook = :webhook
) - :most;

-- name: due_webhooks
-- Webhooks that something is due to, the one that has waited longest first.
select id, tenant, url from (
  select id, tenant, url, (select min(due) from server_delivery where webhook = server_webhook.id) as first_due
  from server_webhook
) as waiting where first_due <= :now order by first_due, id;

-- name: take_due
-- Claims deliveries of a webhook: whoever looks meanwhile finds them due later.
update server_delivery set due = :until where id in (
  select id from server_delivery where webhook = :webhook and due <= :now order by due, id limit :most
  for update skip locked
) returning id, attempts, webhook, body;

-- name: postpone
update server_delivery set attempts = :attempts, due = :due where id = :id;

-- name: end_delivery
delete from server_delivery where id = :id;

-- name: used_on
-- What a tenant used on a day, its sub-agents and what was asked aside included.
select coalesce(sum(input_tokens + output_tokens), 0), coalesce(sum(cost_usd), 0) from usage_day
where owner is not distinct from :owner and day = :day;

-- name: add_payer
-- Whose key asked for a task.
insert into server_payer (task, cid, key)
select :task::uuid, cid, :key::text from conversation where id = :conversation on conflict (task) do nothing;

-- name: charge_run
-- Adds what a running conversation used to the key that asked for its task, or for the task above it.
with recursive up (k, id, under) as (
  select t.k, t.id, t.under from conversation c join task t on t.cid = c.cid
  where c.id = :conversation and t.state = 1
  union
  select t.k, t.id, t.under from up join task t on t.k = up.under)
insert into server_key_usage (key, day, conversation, tokens, cost_usd)
select p.key, :day::int, :conversation::uuid, :tokens::bigint, :cost_usd::float8
from up join server_payer p on p.task = up.id
where true limit 1
on conflict (key, day, conversation) do update set
  tokens = server_key_usage.tokens + excluded.tokens, cost_usd = server_key_usage.cost_usd + excluded.cost_usd;

-- name: charge_key
-- Adds what a key asked aside.
insert into server_key_usage (key, day, conversation, tokens, cost_usd)
values (:key, :day, :conversation, :tokens, :cost_usd)
on conflict (key, day, conversation) do update set
  tokens = server_key_usage.tokens + excluded.tokens, cost_usd = server_key_usage.cost_usd + excluded.cost_usd;

-- name: key_used_on
-- What was used on a day by what a key asked for.
select coalesce(sum(tokens), 0)::bigint, coalesce(sum(cost_usd), 0)
from server_key_usage where key = :key and day = :day;

-- name: payer_used_on
-- The same of the key that pays for a running conversation.
with recursive up (k, id, under) as (
  select t.k, t.id, t.under from conversation c join task t on t.cid = c.cid
  where c.id = :conversation and t.state = 1
  union
  select t.k, t.id, t.under from up join task t on t.k = up.under)
select coalesce(sum(tokens), 0)::bigint, coalesce(sum(cost_usd), 0) from server_key_usage
where key = (select p.key from up join server_payer p on p.task = up.id limit 1) and day = :day;

-- name: add_probe
-- A tenant without a name, in a transaction that removes it again: the store can be written.
insert into server_tenant (id, created, disabled) values ('', 0, 0);

-- name: remove_probe
delete from server_tenant where id = '';

-- name: add_answer
insert into server_answer (caller, agent, digest, cid, head, created)
values (:caller, :agent, :digest, :cid, :head, :now) on conflict do nothing;

-- name: answers
-- The conversations in which the same messages were answered, the latest first.
select c.id, a.head from server_answer a join conversation c on c.cid = a.cid
where a.caller = :caller and a.agent = :agent and a.digest = :digest order by a.created desc, a.cid desc limit 20;
