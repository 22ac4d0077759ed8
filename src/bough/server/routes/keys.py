"""Routes for the API keys of the caller's tenant."""

from __future__ import annotations

from datetime import timedelta
from functools import partial
from typing import Annotated

from fastapi import Request, Response
from pydantic import AfterValidator, BaseModel, Field

from bough.server.access import Access, Admin
from bough.server.auth.caller import SCOPES, Role
from bough.server.auth.keys import KeyInfo, NewKey, format_key_texts, require_no_wider
from bough.server.bodies.base import Form, Integer, Stamp, Success, stamp
from bough.server.bounds.etag import IdempotencyKey, id_from_key, mark_replayed
from bough.server.requests.routing import router

routes = router("Keys")


def _require_scope(scope: str) -> str:
    if scope not in SCOPES:
        raise ValueError(f"not one of the scopes {', '.join(sorted(SCOPES))}")
    return scope


Scope = Annotated[str, AfterValidator(_require_scope)]
"""A scope that a key can be limited to."""


class KeyForm(Form):
    """A key to create, with no higher role and no more scopes than the key that creates it."""

    name: str = Field(min_length=1, max_length=64)
    role: Role = "write"
    scopes: list[Scope] | None = Field(default=None, max_length=50)
    expires_seconds: Integer | None = Field(default=None, ge=1, le=10 * 366 * 86_400)


class RotateForm(Form):
    """How long the old key remains valid."""

    grace_seconds: Integer = Field(default=3600, ge=0, le=30 * 86_400)


class MadeKey(BaseModel):
    """A new key. Its text is shown only once."""

    id: str
    key: str
    tenant: str

    @classmethod
    def of(cls, new: NewKey) -> MadeKey:
        """Return the response for a key."""
        return cls(id=new.id, key=new.text, tenant=new.tenant)


class ListedKey(BaseModel):
    """A key without its text."""

    id: str
    name: str
    role: str
    scopes: list[str]
    created: Stamp
    expires: Stamp | None
    used: Stamp | None
    revoked: Stamp | None

    @classmethod
    def of(cls, info: KeyInfo) -> ListedKey:
        """Return the response for a key."""
        times = {name: getattr(info, name) for name in ("created", "expires", "used", "revoked")}
        times_shown = {name: None if time is None else stamp(time) for name, time in times.items()}
        return cls(id=info.id, name=info.name, role=info.role, scopes=list(info.scopes), **times_shown)  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]


@routes.get("/api/keys")
async def list_keys(access: Admin) -> list[ListedKey]:
    """Return the keys of the tenant."""
    return [ListedKey.of(info) for info in await access.services.keys.table.list(access.caller.tenant)]


@routes.post("/api/keys", status_code=201, responses={200: {"model": MadeKey}})
async def create_key(
    body: KeyForm, access: Admin, request: Request, response: Response, idempotency_key: IdempotencyKey = None
) -> MadeKey:
    """Create a key. The same request within a day, with the same `Idempotency-Key`, returns the same key (200)."""
    scopes = SCOPES if body.scopes is None and access.caller.key is None else body.scopes or access.caller.scopes
    require_no_wider(access.caller, body.role, scopes)
    expires = None if body.expires_seconds is None else timedelta(seconds=body.expires_seconds)
    options = {"tenant": access.caller.tenant, "role": body.role, "scopes": scopes, "expires": expires}
    options["texts"] = _derive_texts(access, request, idempotency_key)
    new_key = await access.services.keys.table.create(body.name, **options)  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
    return _make_response(access, response, new_key)


@routes.delete("/api/keys/{key}")
async def revoke_key(key: str, access: Admin) -> Success:
    """Revoke a key: at once on this server, within a second on others."""
    await access.services.keys.table.revoke(key, tenant=access.caller.tenant)
    access.services.keys.forget()
    return Success()


@routes.post("/api/keys/{key}/rotate", status_code=201, responses={200: {"model": MadeKey}})
async def rotate_key(
    key: str,
    access: Admin,
    request: Request,
    response: Response,
    body: RotateForm | None = None,
    idempotency_key: IdempotencyKey = None,
) -> MadeKey:
    """Replace a key by a new one with the same rights. The old key expires after the grace period.

    The same request with the same `Idempotency-Key` returns the same key (200).
    """
    grace = timedelta(seconds=(body or RotateForm()).grace_seconds)
    texts = _derive_texts(access, request, idempotency_key)
    check = partial(require_no_wider, access.caller)
    table = access.services.keys.table
    new_key = await table.rotate(key, tenant=access.caller.tenant, grace=grace, texts=texts, check=check)
    return _make_response(access, response, new_key)


def _derive_texts(access: Access, request: Request, idempotency_key: str | None) -> list[str]:
    """Return key texts derived from the `Idempotency-Key` of a request, one for each of the operator's secrets."""
    id = id_from_key(access.caller, request, idempotency_key)
    return [] if id is None else format_key_texts(access.services.sealed.box.derive_secrets(f"api key|{id}", 36))


def _make_response(access: Access, response: Response, key: NewKey) -> MadeKey:
    access.services.keys.forget()
    if not key.is_new:
        mark_replayed(response)
    return MadeKey.of(key)
