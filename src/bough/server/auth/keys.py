"""Creating and storing API keys.

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
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any, NamedTuple, cast

from bough.errors import Conflict, InvalidInput, LimitExceeded, NotFound, PermissionDenied
from bough.events.record import moment
from bough.events.side_tables import SideTables, Tables
from bough.events.store import EventStore
from bough.server.auth.caller import LOCAL, ROLES, SCOPES, Caller, Role

if TYPE_CHECKING:
    pass

SERVER = SideTables("server", "bough.server.sql")
"""The server's side tables."""

_TENANT_NAME = re.compile(r"[a-z0-9_-]{1,64}")
REPEATED_SECONDS = 24 * 60 * 60
"""How long a repeated request with the same `Idempotency-Key` returns the secret that the first one created."""

SESSION = timedelta(hours=12)
"""The longest life of a session."""

IDLE = timedelta(minutes=30)
"""A session ends when it was not used for so long."""

_MAX_TENANT_KEYS = 100


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


class KeyRow(NamedTuple):
    """The row of a key or session. All times are microseconds since 1970.

    Attributes:
        disabled: When the tenant was disabled.
        parent: For a session, the key that opened it; None for a key.
        used: When it was used last, or created.
        now: The store's time.
    """

    tenant: str
    name: str
    digest: bytes
    role: Role
    scopes: str
    expires: int | None
    revoked: int | None
    disabled: int | None
    parent: str | None
    used: int
    parent_expires: int | None
    parent_revoked: int | None
    now: int

    @property
    def is_valid(self) -> bool:
        """Whether it opens the server. A session ends with its key, and when nobody uses it."""
        if self.revoked is not None or self.disabled is not None or _is_past(self.expires, self.now):
            return False
        if self.parent is None:
            return True
        is_idle = self.now - self.used >= IDLE // timedelta(microseconds=1)
        return not is_idle and self.parent_revoked is None and not _is_past(self.parent_expires, self.now)


def _is_past(time: int | None, now: int) -> bool:
    return time is not None and time <= now


class KeyTable:
    """The table of keys in a store."""

    def __init__(self, store: EventStore) -> None:
        self.store = store

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
        text = texts[0] if texts else new_key_text()
        id = read_key_id(text)
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
            tables.run("server.add_key", id=id, digest=hash_key(text), now=now, expires=expires_at, **parameters)
            return NewKey(id=id, text=text, tenant=tenant)

        return await self.store.transaction(SERVER, add)

    async def list(self, tenant: str | None = None) -> list[KeyInfo]:
        """Return the keys of a tenant, or of all tenants."""
        rows = await self.store.transaction(
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

        if not await self.store.transaction(SERVER, revoke):
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
        text = texts[0] if texts else new_key_text()
        new_id = read_key_id(text)

        def rotate(tables: Tables) -> NewKey | None:
            row = tables.one("server.key", id=id)
            if row is None:
                return None
            key_tenant, name, _, role, scope_json, expires, revoked, _, parent, *_ = row
            if revoked is not None or parent is not None or (tenant is not None and key_tenant != tenant):
                return None
            if check is not None:
                check(role, json.loads(scope_json))
            existing = _find_created(tables, texts)
            if existing is not None:
                existing_key, _ = existing
                return existing_key
            now = tables.now()
            parameters: dict[str, Any] = {"tenant": key_tenant, "label": name, "role": role, "scopes": scope_json}
            tables.run("server.add_key", id=new_id, digest=hash_key(text), now=now, expires=expires, **parameters)
            tables.run("server.expire", id=id, expires=now + grace // timedelta(microseconds=1))
            return NewKey(id=new_id, text=text, tenant=key_tenant)

        new_key = await self.store.transaction(SERVER, rotate)
        if new_key is None:
            raise NotFound("there is no active key with this id", hint="`bough keys list` shows the keys")
        return new_key

    async def any(self) -> bool:
        """Whether a key was ever created. Revoked keys count: the first key permanently ends the mode without keys."""
        row = await self.store.transaction(
            SERVER, lambda tables: tables.one("server.count_keys"), read_only=True, small=True
        )
        return row is not None and row[0] > 0

    async def tenants(self) -> list[tuple[str, datetime, datetime | None]]:
        """Return the id of each tenant, when it was created, and when it was disabled (None if it is enabled)."""
        rows = await self.store.transaction(SERVER, lambda tables: tables.run("server.tenants"), read_only=True)
        return [(row[0], moment(row[1]), None if row[2] is None else moment(row[2])) for row in rows]

    async def set_disabled(self, tenant: str, *, disabled: bool) -> None:
        """Disable or enable all keys of a tenant.

        Raises:
            NotFound: There is no such tenant.
        """

        def change(tables: Tables) -> bool:
            return bool(tables.run("server.set_disabled", id=tenant, disabled=tables.now() if disabled else None))

        if not await self.store.transaction(SERVER, change):
            raise NotFound("there is no such tenant", hint="`bough keys list` shows the tenants of keys")

    async def find(self, id: str) -> KeyRow | None:
        """Return the row of a key or session; None if none has the id."""

        def read_row(tables: Tables) -> KeyRow | None:
            row = tables.one("server.key", id=id)
            return None if row is None else KeyRow._make((*row, tables.now()))

        return await self.store.transaction(SERVER, read_row, read_only=True, small=True)

    async def touch(self, id: str) -> None:
        """Record that a key was used."""
        await self.store.transaction(SERVER, lambda tables: tables.run("server.touch", id=id, now=tables.now()))


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


def new_key_text() -> str:
    """Return the text of a new key, with 256 random bits."""
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
        id = read_key_id(text)
        row = tables.one("server.key_made", id=id)
        if row is None:
            continue
        created = _CreatedRow(*row)
        is_same = hmac.compare_digest(bytes(created.digest), hash_key(text))
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


def read_key_id(text: str) -> str:
    """Return the id that is part of a key's text."""
    return text.split("_", 2)[1]


def hash_key(text: str) -> bytes:
    """Return what the store contains of a key's text."""
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
