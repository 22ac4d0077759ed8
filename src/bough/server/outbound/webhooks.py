"""Webhooks: deliveries are rows written in the transactions of the log, and any server sends those that are due.

Source: Standard Webhooks (headers, signature).
"""

from __future__ import annotations

import asyncio
import base64
import hashlib
import hmac
import json
import logging
import secrets as randomness
from collections import Counter
from collections.abc import Awaitable, Callable, Collection, Generator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from datetime import datetime
from typing import Any, TypeAlias
from urllib.parse import urlsplit
from uuid import UUID

import httpx2

from bough.connect.address import check_address
from bough.errors import BoughError, Conflict, LimitExceeded, NotFound
from bough.events.record import moment
from bough.events.side_tables import Tables
from bough.events.store import EventStore
from bough.server.auth.keys import REPEATED_SECONDS, SERVER
from bough.server.auth.sealed import SealedSecrets
from bough.server.metrics import Metrics
from bough.server.outbound.notices import A2A, EVENTS, KINDS, describe_notice, follow_notices, note_deletion
from bough.types import JsonObject, SystemClock, new_id

MAX_WEBHOOKS = 20
WAITS_SECONDS = (5, 30, 120, 600, 3600, 6 * 3600)
"""Waits after failures; after the last one a delivery is dead."""

OFF_AFTER_SECONDS = 24 * 3600
"""A webhook that has failed for this long is switched off; a successful test switches it on again."""

_SECOND = 1_000_000
_SEND_SECONDS = 10.0
_LEASE_SECONDS = 60
_AT_ONCE = 64
_OF_TENANT = 8
_OF_HOST = 4
"""Maximum number of concurrent deliveries: of all tenants, of one tenant, and of one tenant to one host."""

_LOOK_SECONDS = 5.0
_LOG = logging.getLogger("bough.server.webhooks")

_Place: TypeAlias = tuple[str, str]
"""The tenant and the host of a delivery."""

_Delivery: TypeAlias = tuple[int, int, str, Sequence[Any]]
"""The number, attempts and body of a delivery, and the row of its webhook."""


@dataclass(frozen=True, kw_only=True)
class Webhook:
    """A receiver of notices.

    Attributes:
        kind: `events`, or `a2a` for push notifications of an A2A client.
        target: The task of the push notifications.
        kinds: The kinds of its notices.
        secret: Signs deliveries; for push notifications, the client's headers as JSON.
        active: False if it failed for so long that it was switched off.
        failing_since: The first failure since the last success; None without one.
    """

    id: str
    tenant: str
    kind: str
    url: str
    target: str | None = None
    kinds: tuple[str, ...] = KINDS
    secret: str = field(default="", repr=False)
    active: bool = True
    failing_since: datetime | None = None


class Webhooks:
    """The webhooks of a store, and their deliveries.

    Args:
        networks: Private networks that webhooks may call.
        describe: Returns the body for an A2A client from a task's id, when it is sent; None without A2A.
    """

    def __init__(
        self, store: EventStore, sealed: SealedSecrets, metrics: Metrics, *, networks: Sequence[str] = ()
    ) -> None:
        self._store = store
        self._sealed = sealed
        self._metrics = metrics
        self._networks = networks
        self._wake = asyncio.Event()
        self.describe: Callable[[str, str], Awaitable[JsonObject]] | None = None

    async def check(self, url: str) -> None:
        """Check that an address may be called. Raises what `check_address` raises."""
        await check_address(url, self._networks)

    async def add(
        self, tenant: str, url: str, *, kinds: Collection[str] = KINDS, kind: str = EVENTS, target: str | None = None,
        secret: str | None = None, id: str | None = None,
    ) -> tuple[Webhook, bool]:  # fmt: skip
        """Add a webhook; return it with its secret, and whether it is new.

        Args:
            id: None for a new one. A webhook with it that the same request created is returned; an A2A
                client's is replaced.

        Raises:
            PermissionDenied: The address is on this machine or a private network.
            LimitExceeded: The tenant has the maximum number of webhooks.
            Conflict: Another request created the webhook with that id, or the same one did more than a day ago.
        """
        await self.check(url)
        hook = Webhook(
            id=id or str(new_id()), tenant=tenant, kind=kind, url=url, target=target, kinds=tuple(kinds),
            secret=secret if secret is not None else f"whsec_{base64.b64encode(randomness.token_bytes(32)).decode()}",
        )  # fmt: skip
        key_id, nonce, sealed = self._sealed.box.seal(_about(hook.tenant, hook.id), hook.secret)

        def write(tables: Tables) -> Sequence[Any] | None:
            if kind == EVENTS and id is not None and (existing := tables.one("server.webhook", id=id)) is not None:
                _require_repeated(tables, _read_row(existing), hook)
                return existing
            if kind == A2A:
                others = {row[0] for row in tables.run("server.webhooks", tenant=tenant, kind=kind, target=target)}
                if len(others - {hook.id}) >= MAX_WEBHOOKS:
                    raise LimitExceeded(f"a task has at most {MAX_WEBHOOKS} of them", hint="delete one")
            row = tables.one("server.count_webhooks", tenant=tenant, kind=EVENTS)
            if kind == EVENTS and row is not None and row[0] >= MAX_WEBHOOKS:
                raise LimitExceeded(f"a tenant has at most {MAX_WEBHOOKS} webhooks", hint="delete one")
            tables.run(
                "server.put_webhook", id=hook.id, tenant=tenant, kind=kind, target=target, url=url,
                kinds=json.dumps(hook.kinds), key_id=key_id, nonce=nonce, ciphertext=sealed, now=tables.now(),
            )  # fmt: skip
            return None

        existing = await self._store.transaction(SERVER, write)
        return (hook, True) if existing is None else (self._open(existing), False)

    async def list(self, tenant: str, *, kind: str = EVENTS, target: str | None = None) -> list[Webhook]:
        """Return the webhooks of a tenant, oldest first; a secret that cannot be decrypted is empty."""

        def look(tables: Tables) -> list[tuple[Any, ...]]:
            return tables.run("server.webhooks", tenant=tenant, kind=kind, target=target)

        return [self._open_or_omit(row) for row in await self._store.transaction(SERVER, look, read_only=True)]

    async def remove(self, tenant: str, id: str) -> None:
        """Delete a webhook and its deliveries.

        Raises:
            NotFound: There is none of that id in the tenant.
        """

        def remove(tables: Tables) -> bool:
            tables.run("server.drop_deliveries", webhook=id, tenant=tenant)
            return bool(tables.run("server.remove_webhook", id=id, tenant=tenant))

        if not await self._store.transaction(SERVER, remove):
            raise NotFound("there is no such webhook")

    async def test(self, tenant: str, id: str) -> None:
        """Write a test delivery for a webhook.

        Raises:
            NotFound: There is none of that id in the tenant.
        """
        if not any(hook.id == id for hook in await self.list(tenant)):
            raise NotFound("there is no such webhook")
        body = describe_notice("webhook.test", tenant, data={})

        def write(tables: Tables) -> None:
            tables.run("server.add_delivery", webhook=id, body=json.dumps(body), now=tables.now())

        await self._store.transaction(SERVER, write)
        self._wake.set()

    async def note_deletion(self, tenant: str, conversation: UUID) -> None:
        """Write the deliveries about a deleted conversation."""
        await self._store.transaction(SERVER, lambda tables: note_deletion(tables, tenant, conversation))
        self._wake.set()

    def follow(self) -> None:
        """Write deliveries in the transactions that change conversations and tasks through this store object."""
        loop = asyncio.get_running_loop()
        follow_notices(self._store, lambda: loop.call_soon_threadsafe(self._wake.set))

    async def serve(self) -> None:
        """Send due deliveries until cancelled. A slow receiver delays only its own."""
        sending = dict[asyncio.Task[None], _Place]()

        def on_end(task: asyncio.Task[None]) -> None:
            del sending[task]
            self._wake.set()

        async with httpx2.AsyncClient(timeout=_SEND_SECONDS, follow_redirects=False, trust_env=False) as http:
            try:
                while True:
                    self._wake.clear()
                    with _log_store_errors():
                        for place, delivery in await self._take_due(list(sending.values())):
                            task = asyncio.create_task(self._send(http, *delivery), name=f"delivery {delivery[0]}")
                            sending[task] = place
                            task.add_done_callback(on_end)
                    with suppress(TimeoutError):
                        await asyncio.wait_for(self._wake.wait(), _LOOK_SECONDS)
            finally:
                pending = list(sending)
                for task in pending:
                    task.cancel()
                await asyncio.gather(*pending, return_exceptions=True)

    async def _take_due(self, sending: Collection[_Place]) -> list[tuple[_Place, _Delivery]]:
        """Claim due deliveries: no other server sends them while the claim holds.

        Args:
            sending: Tenant and host of each delivery in progress.

        Returns: For each, its tenant and host, and its number, attempts, body and the row of its webhook.
        """
        if len(sending) >= _AT_ONCE:
            return []

        def take(tables: Tables) -> list[tuple[_Place, _Delivery]]:
            now = tables.now()
            until = now + _LEASE_SECONDS * _SECOND
            hooks = {
                str(id): (str(tenant), _read_host(url))
                for id, tenant, url in tables.run("server.due_webhooks", now=now)
            }
            slots = DeliverySlots(sending)
            due: list[tuple[_Place, _Delivery]] = []
            while (id := slots.choose(hooks)) is not None:
                rows = tables.run("server.take_due", webhook=id, now=now, until=until, most=1)
                row = tables.one("server.webhook", id=id)
                if not rows or row is None:
                    del hooks[id]
                    continue
                slots.add(hooks[id])
                due.append((hooks[id], (rows[0][0], rows[0][1], rows[0][3], row)))
            return due

        return await self._store.transaction(SERVER, take)

    async def _send(self, http: httpx2.AsyncClient, id: int, attempts: int, body: str, row: Sequence[Any]) -> None:
        with _log_store_errors():  # the claim ends, and the delivery is made again
            await self._deliver(http, id, attempts, body, row)

    async def _deliver(self, http: httpx2.AsyncClient, id: int, attempts: int, body: str, row: Sequence[Any]) -> None:
        hook = _read_row(row)
        try:
            hook = self._open(row)  # in here: a secret whose key is gone fails this delivery, not those of others
            content, headers = await self._prepare(id, body, hook)
            address = await check_address(hook.url, self._networks)
            headers |= {"Host": address.host, "Content-Type": "application/json"}
            extensions = {"sni_hostname": address.host.partition(":")[0]}
            # Of the answer nothing but its status is read, all of it within one bound: a receiver may send for ever.
            async with asyncio.timeout(_SEND_SECONDS):
                async with http.stream(
                    "POST", address.url, content=content, headers=headers, extensions=extensions
                ) as answer:
                    sent = answer.is_success
        # Also what the client makes of an address or a header: no delivery ends those of others.
        except (httpx2.HTTPError, httpx2.InvalidURL, BoughError, TimeoutError, ValueError) as error:
            _LOG.info("delivery %s failed: %s", id, type(error).__name__)
            sent = False
        state = await self._store.transaction(SERVER, lambda tables: _settle(tables, id, attempts, hook, sent=sent))
        self._metrics.deliveries.labels(state).inc()

    async def _prepare(self, id: int, body: str, hook: Webhook) -> tuple[bytes, dict[str, str]]:
        """Return body and headers of a delivery."""
        if hook.kind == A2A:
            assert self.describe is not None  # noqa: S101 - whoever keeps such webhooks sets it
            described = await self.describe(hook.tenant, hook.target or "")
            return json.dumps(described).encode(), dict(json.loads(hook.secret)["headers"])
        content = body.encode()
        return content, sign(hook.secret, str(id), int(SystemClock().now().timestamp()), content)

    def _open_or_omit(self, row: Sequence[Any]) -> Webhook:
        try:
            return self._open(row)
        except BoughError as error:  # a list is complete even if the operator's key was lost
            _LOG.warning("webhook %s: %s", row[0], error.message)
            return _read_row(row)

    def _open(self, row: Sequence[Any]) -> Webhook:
        hook, (key_id, nonce, ciphertext) = _read_row(row), row[6:9]
        secret = self._sealed.box.open(_about(hook.tenant, hook.id), key_id, bytes(nonce), bytes(ciphertext))
        return replace(hook, secret=secret)


class DeliverySlots:
    """Chooses the next deliveries fairly: no tenant or host waits for another's.

    Args:
        sending: Tenant and host of each delivery that is under way.
    """

    def __init__(self, sending: Collection[_Place]) -> None:
        self._hosts = Counter(sending)
        self._tenants = Counter(tenant for tenant, _ in sending)

    def choose(self, waiting: Mapping[str, _Place]) -> str | None:
        """Return the next webhook to call: of the tenant, then of the host, with the fewest deliveries in progress.

        Args:
            waiting: Webhooks with tenant and host, the longest waiting first.
        """
        if self._tenants.total() >= _AT_ONCE:
            return None
        free = [id for id, place in waiting.items() if self._is_free(place)]
        return min(free, key=lambda id: (self._tenants[waiting[id][0]], self._hosts[waiting[id]]), default=None)

    def add(self, place: _Place) -> None:
        """Count a delivery that starts."""
        self._hosts[place] += 1
        self._tenants[place[0]] += 1

    def _is_free(self, place: _Place) -> bool:
        return self._tenants[place[0]] < _OF_TENANT and self._hosts[place] < _OF_HOST


@contextmanager
def _log_store_errors() -> Generator[None]:
    """Log that the store is unavailable, instead of raising, since it will be available again."""
    try:
        yield
    except BoughError as error:
        _LOG.warning("webhooks wait: %s", error.code)


def _read_host(url: str) -> str:
    """Return the host and port of an address, or the address itself without a host."""
    try:
        return urlsplit(url).netloc.rpartition("@")[2].lower() or url
    except ValueError:
        return url


def _read_row(row: Sequence[Any]) -> Webhook:
    """Return a webhook without its secret."""
    id, tenant, kind, target, url, kinds, _, _, _, failing, off = row
    return Webhook(
        id=id, tenant=tenant, kind=kind, target=target, url=url, kinds=tuple(json.loads(kinds)),
        active=off is None, failing_since=None if failing is None else moment(failing),
    )  # fmt: skip


def _require_repeated(tables: Tables, existing: Webhook, repeated: Webhook) -> None:
    """Check that a webhook was created by the same request within the last day."""
    row = tables.one("server.webhook_made", id=existing.id)
    is_same = (existing.tenant, existing.kind, existing.url, existing.kinds) == (
        repeated.tenant,
        repeated.kind,
        repeated.url,
        repeated.kinds,
    )
    if not is_same or row is None or tables.now() - row[0] > REPEATED_SECONDS * _SECOND:
        raise Conflict("the Idempotency-Key was used before", hint="use another one; a secret is not shown again")


def _settle(tables: Tables, id: int, attempts: int, hook: Webhook, *, sent: bool) -> str:
    """Write the result of a delivery, and return its state: `done`, `failed` (to be repeated), `dead`, or `off`."""
    if sent:
        tables.run("server.end_delivery", id=id)
        tables.run("server.note_success", id=hook.id)
        return "done"
    now = tables.now()
    row = tables.one("server.note_failure", id=hook.id, now=now)
    if row is not None and now - row[0] >= OFF_AFTER_SECONDS * _SECOND:
        tables.run("server.switch_off", id=hook.id, now=now)
        tables.run("server.drop_deliveries", webhook=hook.id, tenant=hook.tenant)
        return "off"
    if attempts >= len(WAITS_SECONDS):
        tables.run("server.end_delivery", id=id)
        return "dead"
    tables.run("server.postpone", id=id, attempts=attempts + 1, due=now + WAITS_SECONDS[attempts] * _SECOND)
    return "failed"


def sign(secret: str, id: str, timestamp: int, content: bytes) -> dict[str, str]:
    """Return the signature headers: an HMAC over id, time and content."""
    key = base64.b64decode(secret.removeprefix("whsec_"))
    digest = hmac.new(key, f"{id}.{timestamp}.".encode() + content, hashlib.sha256).digest()
    signature = f"v1,{base64.b64encode(digest).decode()}"
    return {"webhook-id": id, "webhook-timestamp": str(timestamp), "webhook-signature": signature}


def _about(tenant: str, id: str) -> str:
    return f"{tenant}|webhook|{id}"
