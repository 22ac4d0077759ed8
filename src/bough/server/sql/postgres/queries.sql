-- name: add_tenant
-- A tenant is made by its first key.
insert into server_tenant (id, created, disabled) values (%(id)s, %(now)s, null) on conflict (id) do nothing;

-- name: tenants
select id, created, disabled from server_tenant order by id;

-- name: set_disabled
update server_tenant set disabled = %(disabled)s where id = %(id)s returning id;

-- name: add_key
insert into server_key (id, tenant, name, digest, role, scopes, created, expires, used, revoked)
values (%(id)s, %(tenant)s, %(label)s, %(digest)s, %(role)s, %(scopes)s, %(now)s, %(expires)s, null, null);

-- name: key
-- The key of an id, with what its tenant says.
select k.tenant, k.name, k.digest, k.role, k.scopes, k.expires, k.revoked, t.disabled
from server_key k left join server_tenant t on t.id = k.tenant where k.id = %(id)s;

-- name: key_made
-- The key that a repeated request is compared with.
select tenant, name, digest, role, scopes, created, expires, revoked from server_key where id = %(id)s;

-- name: keys
-- Keys of one tenant, or of all, the newest first.
select id, tenant, name, role, scopes, created, expires, used, revoked from server_key
where %(tenant)s::text is null or tenant = %(tenant)s order by created desc, id;

-- name: count_keys
select count(*) from server_key;

-- name: count_tenant_keys
select count(*) from server_key where tenant = %(tenant)s and revoked is null;

-- name: revoke
update server_key set revoked = %(now)s where id = %(id)s and (%(tenant)s::text is null or tenant = %(tenant)s) and revoked is null
returning id;

-- name: expire
-- A rotated key ends after its grace, or when it would have ended anyway.
update server_key set expires = %(expires)s where id = %(id)s and (expires is null or expires > %(expires)s) returning id;

-- name: touch
update server_key set used = %(now)s where id = %(id)s;

-- name: seal
insert into server_sealed (cid, name, key_id, nonce, ciphertext, created)
values (%(cid)s, %(label)s, %(key_id)s, %(nonce)s, %(ciphertext)s, %(now)s)
on conflict (cid, name) do update set key_id = excluded.key_id, nonce = excluded.nonce,
  ciphertext = excluded.ciphertext, created = excluded.created;

-- name: sealed
select name, key_id, nonce, ciphertext from server_sealed where cid = %(cid)s order by name;

-- name: add_sealing_key
insert into server_sealed_key (key_id, created) values (%(key_id)s, %(now)s) on conflict (key_id) do nothing;

-- name: sealing_keys
select key_id from server_sealed_key order by created;

-- name: lock_tenant
-- Held until the transaction ends; a lock on the tenant's row would miss `local`, which has none.
select pg_advisory_xact_lock(hashtextextended('bough tenant ' || %(id)s::text, 0));

-- name: count_runs
-- Tasks of an owner's conversations that are pending or running.
select count(*) from task t join conversation c on c.cid = t.cid
where t.state < 2 and c.owner is not distinct from %(owner)s;

-- name: count_running
-- Running tasks of an owner's conversations that no other task started.
select count(*) from task t join conversation c on c.cid = t.cid where t.state = 1 and t.parent is null and c.owner is not distinct from %(owner)s;

-- name: count_conversations
select count(*) from conversation where owner is not distinct from %(owner)s and not deleted;

-- name: usage
-- What an owner's conversations used between two days, by one of five keys; the most first.
select case %(by)s::text when 'day' then u.day::text when 'agent' then u.agent when 'model' then u.model
                when 'tree' then coalesce(r.id, u.conversation)::text else u.conversation::text end as key,
       sum(u.requests)::bigint, sum(u.input_tokens)::bigint, sum(u.output_tokens)::bigint,
       sum(u.cache_read_tokens)::bigint, sum(u.cache_write_tokens)::bigint, sum(u.cost_usd)::float8,
       sum(u.unpriced)::bigint
from usage_day u left join conversation c on c.id = u.conversation
     left join conversation r on r.cid = coalesce(c.root, c.cid)
where u.owner is not distinct from %(owner)s and u.day between %(first)s and %(last)s
group by 1 order by sum(u.input_tokens) + sum(u.output_tokens) desc, 1;

-- name: usage_of
-- What one conversation used itself.
select sum(requests)::bigint, sum(input_tokens)::bigint, sum(output_tokens)::bigint, sum(cache_read_tokens)::bigint,
       sum(cache_write_tokens)::bigint, sum(cost_usd)::float8, sum(unpriced)::bigint
from usage_day where conversation = %(conversation)s;

-- name: put_webhook
insert into server_webhook (id, tenant, kind, target, url, kinds, key_id, nonce, ciphertext, created)
values (%(id)s, %(tenant)s, %(kind)s, %(target)s, %(url)s, %(kinds)s, %(key_id)s, %(nonce)s, %(ciphertext)s, %(now)s)
on conflict (id) do update set url = excluded.url, key_id = excluded.key_id, nonce = excluded.nonce,
  ciphertext = excluded.ciphertext
where server_webhook.tenant = excluded.tenant;

-- name: count_webhooks
select count(*) from server_webhook where tenant = %(tenant)s and kind = %(kind)s;

-- name: webhooks
-- Of a tenant and kind, and of one task where it is named.
select id, tenant, kind, target, url, kinds, key_id, nonce, ciphertext, failing, switched_off from server_webhook
where tenant = %(tenant)s and kind = %(kind)s and (%(target)s::text is null or target = %(target)s) order by created, id;

-- name: webhook
select id, tenant, kind, target, url, kinds, key_id, nonce, ciphertext, failing, switched_off from server_webhook where id = %(id)s;

-- name: webhook_made
-- When a webhook was made: a repeated request is answered with its secret for a day.
select created from server_webhook where id = %(id)s;

-- name: listening
-- Who is told of what happens in a tenant.
select id, kind, target, kinds from server_webhook where tenant = %(tenant)s and switched_off is null;

-- name: note_failure
-- When a webhook failed first, after it took something.
update server_webhook set failing = coalesce(failing, %(now)s) where id = %(id)s returning failing;

-- name: note_success
update server_webhook set failing = null, switched_off = null
where id = %(id)s and (failing is not null or switched_off is not null);

-- name: switch_off
update server_webhook set switched_off = %(now)s where id = %(id)s and switched_off is null;

-- name: remove_webhook
delete from server_webhook where id = %(id)s and tenant = %(tenant)s returning id;

-- name: drop_deliveries
delete from server_delivery where webhook in (select id from server_webhook where id = %(webhook)s and tenant = %(tenant)s);

-- name: add_delivery
insert into server_delivery (webhook, body, attempts, due) values (%(webhook)s, %(body)s, 0, %(now)s);

-- name: drop_oldest
-- What is due to a webhook is bounded: the oldest go.
delete from server_delivery where webhook = %(webhook)s and id <= (
  select max(id) from server_delivery where webhook = %(webhook)s
) - %(most)s;

-- name: due_webhooks
-- Webhooks that something is due to, the one that has waited longest first.
select id, tenant, url from (
  select id, tenant, url, (select min(due) from server_delivery where webhook = server_webhook.id) as first_due
  from server_webhook
) as waiting where first_due <= %(now)s order by first_due, id;

-- name: take_due
-- Claims deliveries of a webhook: whoever looks meanwhile finds them due later.
update server_delivery set due = %(until)s where id in (
  select id from server_delivery where webhook = %(webhook)s and due <= %(now)s order by due, id limit %(most)s
  for update skip locked
) returning id, attempts, webhook, body;

-- name: postpone
update server_delivery set attempts = %(attempts)s, due = %(due)s where id = %(id)s;

-- name: end_delivery
delete from server_delivery where id = %(id)s;

-- name: used_on
-- What a tenant used on a day, its sub-agents and what was asked aside included.
select coalesce(sum(input_tokens + output_tokens), 0), coalesce(sum(cost_usd), 0) from usage_day
where owner is not distinct from %(owner)s and day = %(day)s;

-- name: a2a_tasks
-- Tasks in an owner's conversations with an A2A agent, the most recently changed first.
select e.ts, t.k, uuid_send(t.id), t.cid, t.first
from conversation c join task t on t.cid = c.cid join event e on e.cid = t.cid and e.seq = t.last
where c.owner is not distinct from %(owner)s and c.config::json ->> 'a2a_agent' = %(agent)s
  and (%(state)s::int is null or t.state = %(state)s) and (%(after)s::bigint is null or e.ts >= %(after)s)
order by e.ts desc, t.k desc;

-- name: add_payer
-- Whose key asked for a task.
insert into server_payer (task, cid, key)
select %(task)s::uuid, cid, %(key)s::text from conversation where id = %(conversation)s on conflict (task) do nothing;

-- name: charge_run
-- Adds what a running conversation used to the key that asked for its task, or for the task above it.
with recursive up (k, id, under) as (
  select t.k, t.id, t.under from conversation c join task t on t.cid = c.cid
  where c.id = %(conversation)s and t.state = 1
  union
  select t.k, t.id, t.under from up join task t on t.k = up.under)
insert into server_key_usage (key, day, conversation, tokens, cost_usd)
select p.key, %(day)s::int, %(conversation)s::uuid, %(tokens)s::bigint, %(cost_usd)s::float8 from up join server_payer p on p.task = up.id
limit 1
on conflict (key, day, conversation) do update set
  tokens = server_key_usage.tokens + excluded.tokens, cost_usd = server_key_usage.cost_usd + excluded.cost_usd;

-- name: charge_key
-- Adds what a key asked aside.
insert into server_key_usage (key, day, conversation, tokens, cost_usd)
values (%(key)s, %(day)s, %(conversation)s, %(tokens)s, %(cost_usd)s)
on conflict (key, day, conversation) do update set
  tokens = server_key_usage.tokens + excluded.tokens, cost_usd = server_key_usage.cost_usd + excluded.cost_usd;

-- name: key_used_on
-- What was used on a day by what a key asked for.
select coalesce(sum(tokens), 0)::bigint, coalesce(sum(cost_usd), 0) from server_key_usage where key = %(key)s and day = %(day)s;

-- name: payer_used_on
-- The same of the key that pays for a running conversation.
with recursive up (k, id, under) as (
  select t.k, t.id, t.under from conversation c join task t on t.cid = c.cid
  where c.id = %(conversation)s and t.state = 1
  union
  select t.k, t.id, t.under from up join task t on t.k = up.under)
select coalesce(sum(tokens), 0)::bigint, coalesce(sum(cost_usd), 0) from server_key_usage
where key = (select p.key from up join server_payer p on p.task = up.id limit 1) and day = %(day)s;

-- name: add_probe
-- A tenant without a name, in a transaction that removes it again: the store can be written.
insert into server_tenant (id, created, disabled) values ('', 0, 0);

-- name: remove_probe
delete from server_tenant where id = '';
