"""API keys: created, stored as digests, verified. Without any key, everyone on this machine is the tenant `local`.

A key is `bough_<8 hexadecimal digits>_<43 characters>`; stored is the SHA-256 of the whole text, since 256 random
bits need no slow hash, and a slow one would allow denial of service.
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

_TEXT = re.compile(r"bough_([0-9a-f]{8})_[A-Za-z0-9_-]{43}")
_TENANT = re.compile(r"[a-z0-9_-]{1,64}")
REPEATED_SECONDS = 24 * 60 * 60
"""How long a repeated request returns the secret that it created."""

_REMEMBERED_SECONDS = 1.0
_REMEMBERED = 10_000
_USED_SECONDS = 60.0
_WRONG_A_MINUTE = 10
_TENANT_KEYS = 100
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
    """A key that was just created, the only time that its text is available.

    Attributes:
        is_new: False if the same request created it earlier.
    """

    id: str
    text: str
    tenant: str
    is_new: bool = True


class KeyTable:
    """The keys of a store."""

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
        """Create a key, and its tenant with the first key.

        Args:
            texts: Key texts for a request that may be repeated: a new key gets the first; a key with any of
                them was created by the same request. Empty for a random text.

        Raises:
            InvalidInput: A name, role or scope is invalid.
            LimitExceeded: The tenant has the maximum number of keys.
            Conflict: The key with that text differs, was revoked, or was created more than a day ago.
        """
        _check(name, tenant, role, scopes)
        text = texts[0] if texts else _new_text()
        id = _read_id(text)
        scope_json = json.dumps(sorted(scopes))

        def add(tables: Tables) -> NewKey:
            if (existing := _find_made(tables, texts)) is not None:
                new_key, row = existing
                lasts = None if row.expires is None else timedelta(microseconds=row.expires - row.created)
                if (row.tenant, row.name, row.role, row.scopes, lasts) != (tenant, name, role, scope_json, expires):
                    raise _make_taken()
                return new_key
            row = tables.one("server.count_tenant_keys", tenant=tenant)
            if row is not None and row[0] >= _TENANT_KEYS:
                raise LimitExceeded(f"a tenant has at most {_TENANT_KEYS} keys", hint="revoke one")
            now = tables.now()
            tables.run("server.add_tenant", id=tenant, now=now)
            ends = None if expires is None else now + expires // timedelta(microseconds=1)
            parameters: dict[str, Any] = {"tenant": tenant, "label": name, "role": role, "scopes": scope_json}
            tables.run("server.add_key", id=id, digest=_digest(text), now=now, expires=ends, **parameters)
            return NewKey(id=id, text=text, tenant=tenant)

        return await self._store.transaction(SERVER, add)

    async def list(self, tenant: str | None = None) -> list[KeyInfo]:
        """Return the keys of a tenant, or of all tenants."""
        rows = await self._store.transaction(
            SERVER, lambda tables: tables.run("server.keys", tenant=tenant), read_only=True
        )
        return [_info(row) for row in rows]

    async def revoke(self, id: str, *, tenant: str | None = None) -> None:
        """Revoke a key; other processes refuse it within a second.

        Raises:
            NotFound: There is no such key in use, or not in the tenant.
        """

        def revoke(tables: Tables) -> bool:
            return bool(tables.run("server.revoke", id=id, tenant=tenant, now=tables.now()))

        if not await self._store.transaction(SERVER, revoke):
            raise NotFound("no key in use has that id", hint="`bough keys list` shows them")

    async def rotate(
        self,
        id: str,
        *,
        tenant: str | None = None,
        grace: timedelta = timedelta(hours=1),
        texts: Sequence[str] = (),
        check: Callable[[Role, Collection[str]], None] | None = None,
    ) -> NewKey:
        """Create a key with the rights of another one, which expires after `grace`.

        Args:
            texts: Key texts for a request that may be repeated, as in `create`.
            check: Raises if the caller may not create a key with that role and these scopes.

        Raises:
            NotFound: There is no such key in use, or not in the tenant.
            Conflict: The key of the same request was revoked, or was created more than a day ago.
        """
        text = texts[0] if texts else _new_text()
        new = _read_id(text)

        def rotate(tables: Tables) -> NewKey | None:
            row = tables.one("server.key", id=id)
            if row is None or row[6] is not None or (tenant is not None and row[0] != tenant):
                return None
            if check is not None:
                check(row[3], json.loads(row[4]))
            if (existing := _find_made(tables, texts)) is not None:
                return existing[0]
            now = tables.now()
            parameters: dict[str, Any] = {"tenant": row[0], "label": row[1], "role": row[3], "scopes": row[4]}
            tables.run("server.add_key", id=new, digest=_digest(text), now=now, expires=row[5], **parameters)
            tables.run("server.expire", id=id, expires=now + grace // timedelta(microseconds=1))
            return NewKey(id=new, text=text, tenant=row[0])

        new_key = await self._store.transaction(SERVER, rotate)
        if new_key is None:
            raise NotFound("no key in use has that id", hint="`bough keys list` shows them")
        return new_key

    async def any(self) -> bool:
        """Whether a key exists, revoked ones included: the first key permanently ends the mode without keys."""
        row = await self._store.transaction(
            SERVER, lambda tables: tables.one("server.count_keys"), read_only=True, small=True
        )
        return row is not None and row[0] > 0

    async def tenants(self) -> list[tuple[str, datetime, datetime | None]]:
        """Return (id, when created, when disabled) of each tenant."""
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
        """Return the row of a key, followed by the store's time."""

        def look(tables: Tables) -> tuple[Any, ...] | None:
            row = tables.one("server.key", id=id)
            return None if row is None else (*row, tables.now())

        return await self._store.transaction(SERVER, look, read_only=True, small=True)

    async def touch(self, id: str) -> None:
        """Record that a key was used."""
        await self._store.transaction(SERVER, lambda tables: tables.run("server.touch", id=id, now=tables.now()))


@dataclass
class _Verified:
    caller: Caller | None
    at: float


class Keys:
    """Verifies keys for one server.

    Args:
        unsafe: Without keys, trust callers from other machines too.
    """

    def __init__(self, table: KeyTable, metrics: Metrics, *, monotonic: Callable[[], float] = time.monotonic) -> None:
        self.table = table
        self._metrics = metrics
        self._monotonic = monotonic
        self._verified: OrderedDict[bytes, _Verified] = OrderedDict()
        self._used: dict[str, float] = {}
        self._wrong: OrderedDict[str, list[float]] = OrderedDict()
        self._exist: tuple[bool, float] | None = None

    async def authenticate(self, key: str | None, client: str) -> Caller:
        """Return the holder of a key; without any key in the store, the tenant `local`.

        Args:
            client: Address of the caller, for which wrong keys are counted.

        Raises:
            Unauthenticated: The key is missing, unknown, wrong, expired or revoked; the error is the same.
            LimitExceeded: Too many wrong keys came from that address.
        """
        if not await self.are_needed():
            return Caller()
        if key is None:
            raise Unauthenticated("a key is needed", hint="send X-Session-API-Key or Authorization: Bearer")
        caller = await self._verify(key)
        if caller is None:  # a valid key is accepted from an address that others guess keys from
            self._metrics.auth_failures.inc()
            self._require_few_wrong(client)
            self._count_wrong(client)
            raise Unauthenticated("the key is not valid", hint="`bough keys create` makes one")
        return caller

    async def require_valid(self, key: str | None) -> None:
        """Check that a stream opened with a key, or without one, may continue. Counts no wrong key.

        Raises:
            Unauthenticated: The key is no longer valid, or one is needed since a key exists.
        """
        if await self.are_needed() and (key is None or await self._verify(key) is None):
            raise Unauthenticated("the key is not valid", hint="`bough keys create` makes one")

    def forget(self) -> None:
        """Drop cached keys, because one was revoked here."""
        self._verified.clear()
        self._exist = None

    async def are_needed(self) -> bool:
        """Whether a caller needs a key, because one exists."""
        now = self._monotonic()
        if self._exist is None or (not self._exist[0] and now - self._exist[1] > _REMEMBERED_SECONDS):
            self._exist = (await self.table.any(), now)
        return self._exist[0]

    async def _verify(self, key: str) -> Caller | None:
        digest, now = _digest(key), self._monotonic()
        verified = self._verified.get(digest)
        if verified is None or now - verified.at > _REMEMBERED_SECONDS:
            verified = _Verified(await self._look_up(key, digest), now)
            self._verified[digest] = verified
            self._verified.move_to_end(digest)
            if len(self._verified) > _REMEMBERED:
                self._verified.popitem(last=False)
        if verified.caller is not None and verified.caller.key is not None:
            await self._touch(verified.caller.key, now)
        return verified.caller

    async def _look_up(self, key: str, digest: bytes) -> Caller | None:
        match = _TEXT.fullmatch(key)
        row = None if match is None else await self.table.find(match[1])
        stored_digest = _NO_DIGEST if row is None else bytes(row[2])
        is_same = hmac.compare_digest(stored_digest, digest)  # an unknown id is compared as well
        if row is None or match is None or not is_same:
            return None
        tenant, name, _, role, scopes, expires, revoked, disabled, now = row
        if revoked is not None or disabled is not None or (expires is not None and expires <= now):
            return None
        return Caller(tenant=tenant, key=match[1], name=name, role=role, scopes=frozenset(json.loads(scopes)))

    async def _touch(self, id: str, now: float) -> None:
        if now - self._used.get(id, -_USED_SECONDS) >= _USED_SECONDS:
            self._used[id] = now
            await self.table.touch(id)

    def _require_few_wrong(self, client: str) -> None:
        since = self._monotonic() - 60
        recent = [at for at in self._wrong.get(client, ()) if at > since]
        if len(recent) >= _WRONG_A_MINUTE:
            wait = round(recent[0] - since, 1)
            details = {"limit": "wrong_keys", "retry_after_seconds": wait}
            raise LimitExceeded("too many wrong keys", hint="wait a minute", details=details)

    def _count_wrong(self, client: str) -> None:
        now = self._monotonic()
        self._wrong[client] = [*(at for at in self._wrong.pop(client, ()) if at > now - 60), now]
        if len(self._wrong) > _REMEMBERED:
            self._wrong.popitem(last=False)


def require_no_wider(caller: Caller, role: Role, scopes: Collection[str]) -> None:
    """Check that a key created by a caller has no right that the caller lacks.

    Raises:
        PermissionDenied: It would have more rights.
    """
    if not caller.may(role) or set(scopes) - caller.scopes:
        raise PermissionDenied("a key cannot make one that may do more", hint="a smaller role, fewer scopes")


def _check(name: str, tenant: str, role: str, scopes: Collection[str]) -> None:
    if not 1 <= len(name) <= 64 or not name.isprintable():
        raise InvalidInput("the key's name is not valid", hint="1 to 64 printable characters")
    if not _TENANT.fullmatch(tenant):
        raise InvalidInput("the tenant's name is not valid", hint="1 to 64 of a-z 0-9 _ -")
    if role not in ROLES:
        raise InvalidInput("there is no such role", hint=f"one of: {', '.join(ROLES)}")
    if unknown := sorted(set(scopes) - SCOPES):
        raise InvalidInput(f"invalid scope {unknown[0]}", hint=f"known scopes: {', '.join(sorted(SCOPES))}")


def _new_text() -> str:
    return f"bough_{secrets.token_hex(4)}_{secrets.token_urlsafe(32)}"


class _MadeRow(NamedTuple):
    tenant: str
    name: str
    digest: bytes
    role: str
    scopes: str
    created: int
    expires: int | None
    revoked: int | None


def _find_made(tables: Tables, texts: Sequence[str]) -> tuple[NewKey, _MadeRow] | None:
    """Return the key that the same request created, which has one of `texts`.

    Raises:
        Conflict: It was revoked, or was created more than a day ago, after which its text is not shown again.
    """
    for text in texts:
        id = _read_id(text)
        row = tables.one("server.key_made", id=id)
        if row is None:
            continue
        match = _MadeRow(*row)
        is_same = hmac.compare_digest(bytes(match.digest), _digest(text))
        if not is_same or match.revoked is not None or tables.now() - match.created > REPEATED_SECONDS * 1_000_000:
            raise _make_taken()
        return NewKey(id=id, text=text, tenant=match.tenant, is_new=False), match
    return None


def _make_taken() -> Conflict:
    return Conflict("the Idempotency-Key was used before", hint="use another one; a key's text is not shown again")


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


def _info(row: Sequence[Any]) -> KeyInfo:
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
