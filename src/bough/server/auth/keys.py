"""Creating, storing and verifying API keys. While a store has no key, every caller is the tenant `local`.

A key is `bough_<8 hexadecimal digits>_<43 characters>`. The store contains the SHA-256 of the whole text: 256 random
bits need no slow hash, and a slow hash would allow denial of service.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
import json
import re
import secrets
import time
from collections import OrderedDict
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any, NamedTuple, cast

from bough.errors import Conflict, InvalidInput, LimitExceeded, NotFound, PermissionDenied, Unauthenticated
from bough.events.record import moment
from bough.events.side_tables import SideTables, Tables
from bough.events.store import EventStore
from bough.server.auth.caller import LOCAL, ROLES, SCOPES, Caller, Role

if TYPE_CHECKING:
    from bough.server.metrics import Metrics

SERVER = SideTables("server", "bough.server.sql")
"""The server's side tables."""

_KEY_TEXT = re.compile(r"bough_([0-9a-f]{8})_[A-Za-z0-9_-]{43}")
_TENANT_NAME = re.compile(r"[a-z0-9_-]{1,64}")
REPEATED_SECONDS = 24 * 60 * 60
"""How long a repeated request with the same `Idempotency-Key` returns the secret that the first one created."""

_CACHE_SECONDS = 1.0
_MAX_CACHED = 10_000
_TOUCH_INTERVAL_SECONDS = 60.0
_MAX_WRONG_PER_MINUTE = 10
_MAX_TENANT_KEYS = 100
_NO_DIGEST = bytes(32)


@dataclass(frozen=True, kw_only=True)
class KeyInfo:
    """A key without its secret text."""

    id: str
    tenant: str
    name: str
    role: Role
    scopes: tuple[str, ...]
    created: datetime
    expires: datetime | None
    used: datetime | None
    revoked: datetime | None


@dataclass(frozen=True, kw_only=True)
class NewKey:
    """A created key with its text, which is not available later.

    Attributes:
        is_new: False if an earlier, identical request created the key.
    """

    id: str
    text: str
    tenant: str
    is_new: bool = True


class KeyTable:
    """The table of keys in a store."""

    def __init__(self, store: EventStore) -> None:
        self._store = store

    async def create(
        self,
        name: str,
        *,
        tenant: str = LOCAL,
        role: Role = "admin",
        scopes: Collection[str] = SCOPES,
        expires: timedelta | None = None,
        texts: Sequence[str] = (),
    ) -> NewKey:
        """Create a key, and its tenant if this is the tenant's first key.

        Args:
            expires: The lifetime of the key; None if it never expires.
            texts: Key texts derived from an `Idempotency-Key`. A new key gets the first of them; an existing key
                with any of them was created by the same request. Empty for a random text.

        Raises:
            InvalidInput: A name, role or scope is invalid.
            LimitExceeded: The tenant has the maximum number of keys.
            Conflict: The same request created a key earlier, and that key differs, was revoked, or is more than a
                day old.
        """
        _check_fields(name, tenant, role, scopes)
        text = texts[0] if texts else _new_text()
        id = _read_id(text)
        scope_json = json.dumps(sorted(scopes))

        def add(tables: Tables) -> NewKey:
            existing = _find_created(tables, texts)
            if existing is not None:
                existing_key, row = existing
                lifetime = None if row.expires is None else timedelta(microseconds=row.expires - row.created)
                if (row.tenant, row.name, row.role, row.scopes, lifetime) != (tenant, name, role, scope_json, expires):
                    raise _make_idempotency_conflict()
                return existing_key
            count_row = tables.one("server.count_tenant_keys", tenant=tenant)
            if count_row is not None and count_row[0] >= _MAX_TENANT_KEYS:
                raise LimitExceeded(f"a tenant has at most {_MAX_TENANT_KEYS} keys", hint="revoke a key")
            now = tables.now()
            tables.run("server.add_tenant", id=tenant, now=now)
            expires_at = None if expires is None else now + expires // timedelta(microseconds=1)
            parameters: dict[str, Any] = {"tenant": tenant, "label": name, "role": role, "scopes": scope_json}
            tables.run("server.add_key", id=id, digest=_digest(text), now=now, expires=expires_at, **parameters)
            return NewKey(id=id, text=text, tenant=tenant)

        return await self._store.transaction(SERVER, add)

    async def list(self, tenant: str | None = None) -> list[KeyInfo]:
        """Return the keys of a tenant, or of all tenants."""
        rows = await self._store.transaction(
            SERVER, lambda tables: tables.run("server.keys", tenant=tenant), read_only=True
        )
        return [_make_key_info(row) for row in rows]

    async def revoke(self, id: str, *, tenant: str | None = None) -> None:
        """Revoke a key; other processes refuse it within a second.

        Raises:
            NotFound: No active key has this id, or the key belongs to another tenant.
        """

        def revoke(tables: Tables) -> bool:
            return bool(tables.run("server.revoke", id=id, tenant=tenant, now=tables.now()))

        if not await self._store.transaction(SERVER, revoke):
            raise NotFound("there is no active key with this id", hint="`bough keys list` shows the keys")

    async def rotate(
        self,
        id: str,
        *,
        tenant: str | None = None,
        grace: timedelta = timedelta(hours=1),
        texts: Sequence[str] = (),
        check: Callable[[Role, Collection[str]], None] | None = None,
    ) -> NewKey:
        """Create a key with the rights of an existing key, and let the existing key expire after `grace`.

        Args:
            texts: Key texts derived from an `Idempotency-Key`, as in `create`.
            check: Called with the role and the scopes of the key; raises if the caller may not create such a key.

        Raises:
            NotFound: No active key has this id, or the key belongs to another tenant.
            Conflict: The same request created a key earlier, and that key was revoked or is more than a day old.
        """
        text = texts[0] if texts else _new_text()
        new_id = _read_id(text)

        def rotate(tables: Tables) -> NewKey | None:
            row = tables.one("server.key", id=id)
            if row is None:
                return None
            key_tenant, name, _, role, scope_json, expires, revoked, _ = row
            if revoked is not None or (tenant is not None and key_tenant != tenant):
                return None
            if check is not None:
                check(role, json.loads(scope_json))
            existing = _find_created(tables, texts)
            if existing is not None:
                existing_key, _ = existing
                return existing_key
            now = tables.now()
            parameters: dict[str, Any] = {"tenant": key_tenant, "label": name, "role": role, "scopes": scope_json}
            tables.run("server.add_key", id=new_id, digest=_digest(text), now=now, expires=expires, **parameters)
            tables.run("server.expire", id=id, expires=now + grace // timedelta(microseconds=1))
            return NewKey(id=new_id, text=text, tenant=key_tenant)

        new_key = await self._store.transaction(SERVER, rotate)
        if new_key is None:
            raise NotFound("there is no active key with this id", hint="`bough keys list` shows the keys")
        return new_key

    async def any(self) -> bool:
        """Whether a key was ever created. Revoked keys count: the first key permanently ends the mode without keys."""
        row = await self._store.transaction(
            SERVER, lambda tables: tables.one("server.count_keys"), read_only=True, small=True
        )
        return row is not None and row[0] > 0

    async def tenants(self) -> list[tuple[str, datetime, datetime | None]]:
        """Return the id of each tenant, when it was created, and when it was disabled (None if it is enabled)."""
        rows = await self._store.transaction(SERVER, lambda tables: tables.run("server.tenants"), read_only=True)
        return [(row[0], moment(row[1]), None if row[2] is None else moment(row[2])) for row in rows]

    async def set_disabled(self, tenant: str, *, disabled: bool) -> None:
        """Disable or enable all keys of a tenant.

        Raises:
            NotFound: There is no such tenant.
        """

        def change(tables: Tables) -> bool:
            return bool(tables.run("server.set_disabled", id=tenant, disabled=tables.now() if disabled else None))

        if not await self._store.transaction(SERVER, change):
            raise NotFound("there is no such tenant", hint="`bough keys list` shows the tenants of keys")

    async def find(self, id: str) -> tuple[Any, ...] | None:
        """Return the columns of a key, followed by the store's time; None if no key has the id."""

        def read_row(tables: Tables) -> tuple[Any, ...] | None:
            row = tables.one("server.key", id=id)
            return None if row is None else (*row, tables.now())

        return await self._store.transaction(SERVER, read_row, read_only=True, small=True)

    async def touch(self, id: str) -> None:
        """Record that a key was used."""
        await self._store.transaction(SERVER, lambda tables: tables.run("server.touch", id=id, now=tables.now()))


@dataclass
class _Verification:
    """The result of a lookup: the holder of a key, None if the key is invalid, and when it was looked up."""

    caller: Caller | None
    looked_up_at: float


class Keys:
    """Verifies the keys of one server's callers."""

    def __init__(self, table: KeyTable, metrics: Metrics, *, monotonic: Callable[[], float] = time.monotonic) -> None:
        self.table = table
        self._metrics = metrics
        self._monotonic = monotonic
        self._verified: OrderedDict[bytes, _Verification] = OrderedDict()
        self._touched: dict[str, float] = {}
        self._wrong_key_times: OrderedDict[str, list[float]] = OrderedDict()
        self._keys_exist = False
        self._existence_read_at: float | None = None

    async def authenticate(self, key: str | None, client: str) -> Caller:
        """Return the holder of a key; the tenant `local` while the store has no key.

        Args:
            client: Address of the caller; wrong keys are counted by address.

        Raises:
            Unauthenticated: The key is missing, or it is unknown, wrong, expired or revoked;
                the error is the same for every invalid key.
            LimitExceeded: The address sent too many wrong keys.
        """
        if not await self.are_needed():
            return Caller()
        if key is None:
            raise Unauthenticated("a key is needed", hint="send X-Session-API-Key or Authorization: Bearer")
        caller = await self._verify(key)
        if caller is None:  # checked first: a valid key is accepted even if others guess keys from the same address
            self._metrics.auth_failures.inc()
            self._require_few_wrong_keys(client)
            self._count_wrong_key(client)
            raise Unauthenticated("the key is not valid", hint="`bough keys create` creates a key")
        return caller

    async def require_valid(self, key: str | None) -> None:
        """Check that an open stream may continue: its key is still valid, or no key is needed. Counts no wrong keys.

        Raises:
            Unauthenticated: The key is no longer valid, or the stream has no key and now needs one.
        """
        if await self.are_needed() and (key is None or await self._verify(key) is None):
            raise Unauthenticated("the key is not valid", hint="`bough keys create` creates a key")

    def forget(self) -> None:
        """Clear the cache, so that a change of keys by this server applies at once."""
        self._verified.clear()
        self._keys_exist = False
        self._existence_read_at = None

    async def are_needed(self) -> bool:
        """Whether callers need a key; true as soon as a key exists."""
        if not self._keys_exist:
            now = self._monotonic()
            if self._existence_read_at is None or now - self._existence_read_at > _CACHE_SECONDS:
                self._keys_exist = await self.table.any()
                self._existence_read_at = now
        return self._keys_exist

    async def _verify(self, key: str) -> Caller | None:
        """Return the holder of a key, at most a second old; None if the key is invalid. Records that it was used."""
        digest, now = _digest(key), self._monotonic()
        verified = self._verified.get(digest)
        if verified is None or now - verified.looked_up_at > _CACHE_SECONDS:
            verified = _Verification(await self._look_up(key, digest), now)
            self._verified[digest] = verified
            self._verified.move_to_end(digest)
            if len(self._verified) > _MAX_CACHED:
                self._verified.popitem(last=False)
        if verified.caller is not None and verified.caller.key is not None:
            await self._touch(verified.caller.key, now)
        return verified.caller

    async def _look_up(self, key: str, digest: bytes) -> Caller | None:
        match = _KEY_TEXT.fullmatch(key)
        row = None if match is None else await self.table.find(match[1])
        stored_digest = _NO_DIGEST if row is None else bytes(row[2])
        is_same = hmac.compare_digest(
            stored_digest, digest
        )  # also for an unknown id: the response time reveals nothing
        if row is None or match is None or not is_same:
            return None
        tenant, name, _, role, scopes, expires, revoked, disabled, now = row
        if revoked is not None or disabled is not None or (expires is not None and expires <= now):
            return None
        return Caller(tenant=tenant, key=match[1], name=name, role=role, scopes=frozenset(json.loads(scopes)))

    async def _touch(self, id: str, now: float) -> None:
        if now - self._touched.get(id, -_TOUCH_INTERVAL_SECONDS) >= _TOUCH_INTERVAL_SECONDS:
            self._touched[id] = now
            await self.table.touch(id)

    def _require_few_wrong_keys(self, client: str) -> None:
        window_start = self._monotonic() - 60
        recent_times = [wrong_at for wrong_at in self._wrong_key_times.get(client, ()) if wrong_at > window_start]
        if len(recent_times) >= _MAX_WRONG_PER_MINUTE:
            wait_seconds = round(recent_times[0] - window_start, 1)
            details = {"limit": "wrong_keys", "retry_after_seconds": wait_seconds}
            raise LimitExceeded("too many wrong keys", hint="wait a minute", details=details)

    def _count_wrong_key(self, client: str) -> None:
        now = self._monotonic()
        recent_times = [wrong_at for wrong_at in self._wrong_key_times.pop(client, ()) if wrong_at > now - 60]
        self._wrong_key_times[client] = [*recent_times, now]
        if len(self._wrong_key_times) > _MAX_CACHED:
            self._wrong_key_times.popitem(last=False)


def require_no_wider(caller: Caller, role: Role, scopes: Collection[str]) -> None:
    """Check that a key created by a caller has no right that the caller lacks.

    Raises:
        PermissionDenied: The role is higher than the caller's, or the caller lacks a scope.
    """
    if not caller.may(role) or set(scopes) - caller.scopes:
        raise PermissionDenied("a key cannot create a key with more rights", hint="choose a lower role or fewer scopes")


def _check_fields(name: str, tenant: str, role: str, scopes: Collection[str]) -> None:
    if not 1 <= len(name) <= 64 or not name.isprintable():
        raise InvalidInput("the key's name is not valid", hint="use 1 to 64 printable characters")
    if not _TENANT_NAME.fullmatch(tenant):
        raise InvalidInput("the tenant's name is not valid", hint="use 1 to 64 of the characters a-z 0-9 _ -")
    if role not in ROLES:
        raise InvalidInput("there is no such role", hint=f"one of: {', '.join(ROLES)}")
    if unknown := sorted(set(scopes) - SCOPES):
        raise InvalidInput(f"invalid scope {unknown[0]}", hint=f"known scopes: {', '.join(sorted(SCOPES))}")


def _new_text() -> str:
    return f"bough_{secrets.token_hex(4)}_{secrets.token_urlsafe(32)}"


class _CreatedRow(NamedTuple):
    tenant: str
    name: str
    digest: bytes
    role: str
    scopes: str
    created: int
    expires: int | None
    revoked: int | None


def _find_created(tables: Tables, texts: Sequence[str]) -> tuple[NewKey, _CreatedRow] | None:
    """Return the key that an earlier, identical request created, and its row; None if there is none.

    Args:
        texts: The key texts that the request may have created.

    Raises:
        Conflict: The key was revoked, or it is more than a day old, and its text is not shown again.
    """
    for text in texts:
        id = _read_id(text)
        row = tables.one("server.key_made", id=id)
        if row is None:
            continue
        created = _CreatedRow(*row)
        is_same = hmac.compare_digest(bytes(created.digest), _digest(text))
        is_too_old = tables.now() - created.created > REPEATED_SECONDS * 1_000_000
        if not is_same or created.revoked is not None or is_too_old:
            raise _make_idempotency_conflict()
        return NewKey(id=id, text=text, tenant=created.tenant, is_new=False), created
    return None


def _make_idempotency_conflict() -> Conflict:
    return Conflict(
        "the Idempotency-Key was used before", hint="use another Idempotency-Key; the text of a key is shown only once"
    )


def format_key_texts(secrets_of_request: Sequence[bytes]) -> list[str]:
    """Return one key text for each secret of 36 bytes."""
    return [
        f"bough_{secret[:4].hex()}_{base64.urlsafe_b64encode(secret[4:]).rstrip(b'=').decode()}"
        for secret in secrets_of_request
    ]


def _read_id(text: str) -> str:
    return text.split("_", 2)[1]


def _digest(text: str) -> bytes:
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).digest()


def _make_key_info(row: Sequence[Any]) -> KeyInfo:
    id, tenant, name, role, scopes, *times = row
    created, expires, used, revoked = (None if time is None else moment(time) for time in times)
    return KeyInfo(
        id=id,
        tenant=tenant,
        name=name,
        role=role,
        scopes=tuple(json.loads(scopes)),
        created=cast("datetime", created),
        expires=expires,
        used=used,
        revoked=revoked,
    )
