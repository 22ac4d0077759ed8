"""Webhooks. Deliveries are rows written in the transactions of the log; any server sends those that are due.

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
RETRY_SECONDS = (5, 30, 120, 600, 3600, 6 * 3600)
"""How long to wait after each failure of a delivery. After the last one the delivery is dropped."""

OFF_AFTER_SECONDS = 24 * 3600
"""A webhook that has failed for this long is switched off. A successful test delivery switches it on again."""

_SECOND = 1_000_000  # in microseconds, the unit of `Tables.now`
_SEND_SECONDS = 10.0
_LEASE_SECONDS = 60
_MAX_SENDING = 64
_MAX_PER_TENANT = 8
_MAX_PER_HOST = 4
"""Maximum number of concurrent deliveries: of all tenants, of one tenant, and of one tenant to one host."""

_POLL_SECONDS = 5.0
_LOG = logging.getLogger("bough.server.webhooks")

_Destination: TypeAlias = tuple[str, str]
"""The tenant and host of a delivery."""

_Delivery: TypeAlias = tuple[int, int, str, Sequence[Any]]
"""The number, attempts and body of a delivery, and the row of its webhook."""


@dataclass(frozen=True, kw_only=True)
class Webhook:
    """A receiver of notices.

    Attributes:
        kind: `events`, or `a2a` for push notifications of an A2A client.
        target: The task that push notifications are about.
        kinds: The kinds of notices that it gets.
        secret: Signs deliveries; for push notifications, the client's headers as JSON.
        active: False if it was switched off after `OFF_AFTER_SECONDS` of failures.
        failing_since: When the first failure since the last success happened; None without one.
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
        describe: Returns the body for an A2A client from the tenant and the task's id, when the delivery is sent. None
            without A2A.
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
        """Check that webhooks may call an address. Raises what `check_address` raises."""
        await check_address(url, self._networks)

    async def add(
        self, tenant: str, url: str, *, kinds: Collection[str] = KINDS, kind: str = EVENTS, target: str | None = None,
        secret: str | None = None, id: str | None = None,
    ) -> tuple[Webhook, bool]:  # fmt: skip
        """Add a webhook, and return it with its secret, and whether it is new.

        Args:
            id: None makes a new id. If a webhook has this id, the same request must have created it, and it is
                returned; a webhook of an A2A client is replaced.
            secret: None makes a new secret.

        Raises:
            PermissionDenied: The address is on this machine or a private network.
            LimitExceeded: The tenant, or the A2A task, has the maximum number of webhooks.
            Conflict: Another request created the webhook with this id, or the same request did so more than a day ago.
        """
        await self.check(url)
        hook = Webhook(
            id=id or str(new_id()), tenant=tenant, kind=kind, url=url, target=target, kinds=tuple(kinds),
            secret=secret if secret is not None else f"whsec_{base64.b64encode(randomness.token_bytes(32)).decode()}",
        )  # fmt: skip
        key_id, nonce, sealed = self._sealed.box.seal(_seal_context(hook.tenant, hook.id), hook.secret)

        def write(tables: Tables) -> Sequence[Any] | None:
            existing = tables.one("server.webhook", id=id) if kind == EVENTS and id is not None else None
            if existing is not None:
                _require_repeated(tables, _read_row(existing), hook)
                return existing
            if kind == A2A:
                ids = {row[0] for row in tables.run("server.webhooks", tenant=tenant, kind=kind, target=target)}
                if len(ids - {hook.id}) >= MAX_WEBHOOKS:
                    raise LimitExceeded(f"a task has at most {MAX_WEBHOOKS} webhooks", hint="delete one")
            row = tables.one("server.count_webhooks", tenant=tenant, kind=EVENTS)
            if kind == EVENTS and row is not None and row[0] >= MAX_WEBHOOKS:
                raise LimitExceeded(f"a tenant has at most {MAX_WEBHOOKS} webhooks", hint="delete one")
            tables.run(
                "server.put_webhook", id=hook.id, tenant=tenant, kind=kind, target=target, url=url,
                kinds=json.dumps(hook.kinds), key_id=key_id, nonce=nonce, ciphertext=sealed, now=tables.now(),
            )  # fmt: skip
            return None

        existing = await self._store.transaction(SERVER, write)
        return (hook, True) if existing is None else (self._decrypt(existing), False)

    async def list(self, tenant: str, *, kind: str = EVENTS, target: str | None = None) -> list[Webhook]:
        """Return the webhooks of a tenant, oldest first. A secret that cannot be decrypted is an empty text."""

        def read(tables: Tables) -> list[tuple[Any, ...]]:
            return tables.run("server.webhooks", tenant=tenant, kind=kind, target=target)

        return [self._try_decrypt(row) for row in await self._store.transaction(SERVER, read, read_only=True)]

    async def remove(self, tenant: str, id: str) -> None:
        """Delete a webhook and its deliveries.

        Raises:
            NotFound: The tenant has no webhook with this id.
        """

        def remove(tables: Tables) -> bool:
            tables.run("server.drop_deliveries", webhook=id, tenant=tenant)
            return bool(tables.run("server.remove_webhook", id=id, tenant=tenant))

        if not await self._store.transaction(SERVER, remove):
            raise NotFound("there is no such webhook")

    async def test(self, tenant: str, id: str) -> None:
        """Write a test delivery for a webhook.

        Raises:
            NotFound: The tenant has no webhook with this id.
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
        """Send due deliveries until cancelled. A slow receiver delays only its own deliveries."""
        sending = dict[asyncio.Task[None], _Destination]()

        def on_end(task: asyncio.Task[None]) -> None:
            del sending[task]
            self._wake.set()

        async with httpx2.AsyncClient(timeout=_SEND_SECONDS, follow_redirects=False, trust_env=False) as http:
            try:
                while True:
                    self._wake.clear()
                    with _log_store_errors():
                        for destination, delivery in await self._take_due(list(sending.values())):
                            task = asyncio.create_task(self._send(http, *delivery), name=f"delivery {delivery[0]}")
                            sending[task] = destination
                            task.add_done_callback(on_end)
                    with suppress(TimeoutError):
                        await asyncio.wait_for(self._wake.wait(), _POLL_SECONDS)
            finally:
                pending = list(sending)
                for task in pending:
                    task.cancel()
                await asyncio.gather(*pending, return_exceptions=True)

    async def _take_due(self, sending: Collection[_Destination]) -> list[tuple[_Destination, _Delivery]]:
        """Claim due deliveries for `_LEASE_SECONDS`, during which no other server sends them.

        Args:
            sending: The destinations of the deliveries in progress.
        """
        if len(sending) >= _MAX_SENDING:
            return []

        def take(tables: Tables) -> list[tuple[_Destination, _Delivery]]:
            now = tables.now()
            until = now + _LEASE_SECONDS * _SECOND
            destinations = {
                str(id): (str(tenant), _read_host(url))
                for id, tenant, url in tables.run("server.due_webhooks", now=now)
            }
            slots = DeliverySlots(sending)
            due: list[tuple[_Destination, _Delivery]] = []
            while (id := slots.choose(destinations)) is not None:
                rows = tables.run("server.take_due", webhook=id, now=now, until=until, most=1)
                webhook = tables.one("server.webhook", id=id)
                if not rows or webhook is None:
                    del destinations[id]
                    continue
                slots.add(destinations[id])
                number, attempts, _, body = rows[0]
                due.append((destinations[id], (number, attempts, body, webhook)))
            return due

        return await self._store.transaction(SERVER, take)

    async def _send(self, http: httpx2.AsyncClient, id: int, attempts: int, body: str, row: Sequence[Any]) -> None:
        with _log_store_errors():  # the claim expires, and the delivery is sent again
            await self._deliver(http, id, attempts, body, row)

    async def _deliver(self, http: httpx2.AsyncClient, id: int, attempts: int, body: str, row: Sequence[Any]) -> None:
        """Send one delivery to the webhook in `row`, and record whether the receiver accepted it."""
        hook = _read_row(row)
        try:
            hook = self._decrypt(row)  # inside the `try`: a secret that cannot be decrypted fails this delivery only
            content, headers = await self._prepare(id, body, hook)
            address = await check_address(hook.url, self._networks)
            headers |= {"Host": address.host, "Content-Type": "application/json"}
            extensions = {"sni_hostname": address.host.partition(":")[0]}
            # One timeout for the whole exchange, and only the response's status is read: a receiver may send for ever.
            async with asyncio.timeout(_SEND_SECONDS):
                async with http.stream(
                    "POST", address.url, content=content, headers=headers, extensions=extensions
                ) as response:
                    sent = response.is_success
        # Includes errors of the client about an address or a header: a delivery must not end the others.
        except (httpx2.HTTPError, httpx2.InvalidURL, BoughError, TimeoutError, ValueError) as error:
            _LOG.info("delivery %s failed: %s", id, type(error).__name__)
            sent = False
        result = await self._store.transaction(
            SERVER, lambda tables: _record_result(tables, id, attempts, hook, sent=sent)
        )
        self._metrics.deliveries.labels(result).inc()

    async def _prepare(self, id: int, body: str, hook: Webhook) -> tuple[bytes, dict[str, str]]:
        """Return the content and headers of a delivery."""
        if hook.kind == A2A:
            assert self.describe is not None  # noqa: S101 - set by the code that adds A2A webhooks
            described = await self.describe(hook.tenant, hook.target or "")
            return json.dumps(described).encode(), dict(json.loads(hook.secret)["headers"])
        content = body.encode()
        return content, sign(hook.secret, str(id), int(SystemClock().now().timestamp()), content)

    def _try_decrypt(self, row: Sequence[Any]) -> Webhook:
        """Return the webhook of a row, without its secret if that cannot be decrypted."""
        try:
            return self._decrypt(row)
        except BoughError as error:  # a list must be complete even if the operator's key was lost
            _LOG.warning("webhook %s: %s", row[0], error.message)
            return _read_row(row)

    def _decrypt(self, row: Sequence[Any]) -> Webhook:
        """Return the webhook of a row with its secret."""
        hook = _read_row(row)
        key_id, nonce, ciphertext = row[6:9]
        secret = self._sealed.box.open(_seal_context(hook.tenant, hook.id), key_id, bytes(nonce), bytes(ciphertext))
        return replace(hook, secret=secret)


class DeliverySlots:
    """Chooses the next deliveries fairly: no tenant or host waits for another one.

    Args:
        sending: The destinations of the deliveries in progress.
    """

    def __init__(self, sending: Collection[_Destination]) -> None:
        self._hosts = Counter(sending)
        self._tenants = Counter(tenant for tenant, _ in sending)

    def choose(self, waiting: Mapping[str, _Destination]) -> str | None:
        """Return the next webhook to call; None if no waiting one has a free slot.

        The tenant with the fewest deliveries in progress comes first, then the host with the fewest.

        Args:
            waiting: The destination of each webhook, the longest waiting first.
        """
        if self._tenants.total() >= _MAX_SENDING:
            return None
        candidates = [id for id, destination in waiting.items() if self._has_slot(destination)]
        return min(candidates, key=lambda id: (self._tenants[waiting[id][0]], self._hosts[waiting[id]]), default=None)

    def add(self, destination: _Destination) -> None:
        """Count a delivery that starts."""
        tenant, _ = destination
        self._hosts[destination] += 1
        self._tenants[tenant] += 1

    def _has_slot(self, destination: _Destination) -> bool:
        tenant, _ = destination
        return self._tenants[tenant] < _MAX_PER_TENANT and self._hosts[destination] < _MAX_PER_HOST


@contextmanager
def _log_store_errors() -> Generator[None]:
    """Log an error of the store instead of raising it, because the store will be available again."""
    try:
        yield
    except BoughError as error:
        _LOG.warning("webhooks wait: %s", error.code)


def _read_host(url: str) -> str:
    """Return the host and port of a URL, or the URL itself if it has no host."""
    try:
        return urlsplit(url).netloc.rpartition("@")[2].lower() or url
    except ValueError:
        return url


def _read_row(row: Sequence[Any]) -> Webhook:
    """Return the webhook of a row, without its secret."""
    id, tenant, kind, target, url, kinds, _, _, _, failing_since, switched_off = row
    return Webhook(
        id=id, tenant=tenant, kind=kind, target=target, url=url, kinds=tuple(json.loads(kinds)),
        active=switched_off is None, failing_since=None if failing_since is None else moment(failing_since),
    )  # fmt: skip


def _require_repeated(tables: Tables, existing: Webhook, repeated: Webhook) -> None:
    """Check that the same request created the existing webhook within the last day.

    Raises:
        Conflict: It did not.
    """
    row = tables.one("server.webhook_made", id=existing.id)
    is_same = (existing.tenant, existing.kind, existing.url, existing.kinds) == (
        repeated.tenant,
        repeated.kind,
        repeated.url,
        repeated.kinds,
    )
    if not is_same or row is None or tables.now() - row[0] > REPEATED_SECONDS * _SECOND:
        raise Conflict("the Idempotency-Key was used before", hint="use another one; a secret is not shown again")


def _record_result(tables: Tables, id: int, attempts: int, hook: Webhook, *, sent: bool) -> str:
    """Write the result of a delivery, and return its state: `done`, `failed` (will be repeated), `dead`, or `off`."""
    if sent:
        tables.run("server.end_delivery", id=id)
        tables.run("server.note_success", id=hook.id)
        return "done"
    now = tables.now()
    failing_since = tables.one("server.note_failure", id=hook.id, now=now)
    if failing_since is not None and now - failing_since[0] >= OFF_AFTER_SECONDS * _SECOND:
        tables.run("server.switch_off", id=hook.id, now=now)
        tables.run("server.drop_deliveries", webhook=hook.id, tenant=hook.tenant)
        return "off"
    if attempts >= len(RETRY_SECONDS):
        tables.run("server.end_delivery", id=id)
        return "dead"
    tables.run("server.postpone", id=id, attempts=attempts + 1, due=now + RETRY_SECONDS[attempts] * _SECOND)
    return "failed"


def sign(secret: str, id: str, timestamp: int, content: bytes) -> dict[str, str]:
    """Return the headers of Standard Webhooks; the signature is an HMAC-SHA256 over id, time and content."""
    key = base64.b64decode(secret.removeprefix("whsec_"))
    digest = hmac.new(key, f"{id}.{timestamp}.".encode() + content, hashlib.sha256).digest()
    signature = f"v1,{base64.b64encode(digest).decode()}"
    return {"webhook-id": id, "webhook-timestamp": str(timestamp), "webhook-signature": signature}


def _seal_context(tenant: str, id: str) -> str:
    """Return the text that binds an encrypted secret to its webhook."""
    return f"{tenant}|webhook|{id}"
