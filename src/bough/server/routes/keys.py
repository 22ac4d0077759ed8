"""API keys of the caller's own tenant."""

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
        raise ValueError(f"not a scope: {', '.join(sorted(SCOPES))}")
    return scope


Scope = Annotated[str, AfterValidator(_require_scope)]
"""What a key may be limited to."""


class KeyForm(Form):
    """A key to be made: at most the role and the scopes of the key that makes it."""

    name: str = Field(min_length=1, max_length=64)
    role: Role = "write"
    scopes: list[Scope] | None = Field(default=None, max_length=50)
    expires_seconds: Integer | None = Field(default=None, ge=1, le=10 * 366 * 86_400)


class RotateForm(Form):
    """How long the old key stays valid."""

    grace_seconds: Integer = Field(default=3600, ge=0, le=30 * 86_400)


class MadeKey(BaseModel):
    """A new key; its text is never shown again."""

    id: str
    key: str
    tenant: str

    @classmethod
    def of(cls, new: NewKey) -> MadeKey:
        """Return it as an answer."""
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
        """Return it as an answer."""
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
    """Make a key; the same request again within a day gives the same one (200)."""
    scopes = SCOPES if body.scopes is None and access.caller.key is None else body.scopes or access.caller.scopes
    require_no_wider(access.caller, body.role, scopes)
    expires = None if body.expires_seconds is None else timedelta(seconds=body.expires_seconds)
    options = {"tenant": access.caller.tenant, "role": body.role, "scopes": scopes, "expires": expires}
    options["texts"] = _derive_texts(access, request, idempotency_key)
    new_key = await access.services.keys.table.create(body.name, **options)  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
    return _answer_made(access, response, new_key)


@routes.delete("/api/keys/{key}")
async def revoke_key(key: str, access: Admin) -> Success:
    """End a key, at once here and within a second elsewhere."""
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
    """Make a key like this one, which ends after the grace; the same request again gives the same one (200)."""
    grace = timedelta(seconds=(body or RotateForm()).grace_seconds)
    texts = _derive_texts(access, request, idempotency_key)
    check = partial(require_no_wider, access.caller)
    table = access.services.keys.table
    new_key = await table.rotate(key, tenant=access.caller.tenant, grace=grace, texts=texts, check=check)
    return _answer_made(access, response, new_key)


def _derive_texts(access: Access, request: Request, idempotency_key: str | None) -> list[str]:
    """Return the texts of the key of a request, derived from its `Idempotency-Key` and the operator's secret."""
    id = id_from_key(access.caller, request, idempotency_key)
    return [] if id is None else format_key_texts(access.services.sealed.box.derive_secrets(f"api key|{id}", 36))


def _answer_made(access: Access, response: Response, key: NewKey) -> MadeKey:
    access.services.keys.forget()
    if not key.is_new:
        mark_replayed(response)
    return MadeKey.of(key)
