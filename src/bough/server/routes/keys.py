"""API keys of the caller's own tenant."""

from __future__ import annotations

from datetime import timedelta
from typing import Annotated

from pydantic import AfterValidator, BaseModel, Field

from bough.server.access import Admin
from bough.server.auth.caller import SCOPES, Role
from bough.server.auth.keys import KeyInfo, NewKey, require_no_wider
from bough.server.forms.base import Form, Stamp, Success, stamp
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
    expires_seconds: int | None = Field(default=None, ge=1, le=10 * 366 * 86_400)


class RotateForm(Form):
    """How long the old key stays valid."""

    grace_seconds: int = Field(default=3600, ge=0, le=30 * 86_400)


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
        said = {name: None if time is None else stamp(time) for name, time in times.items()}
        return cls(id=info.id, name=info.name, role=info.role, scopes=list(info.scopes), **said)  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]


@routes.get("/api/keys")
async def list_keys(access: Admin) -> list[ListedKey]:
    """Return the keys of the tenant."""
    return [ListedKey.of(info) for info in await access.services.keys.table.list(access.caller.tenant)]


@routes.post("/api/keys", status_code=201)
async def create_key(body: KeyForm, access: Admin) -> MadeKey:
    """Make a key."""
    scopes = SCOPES if body.scopes is None and access.caller.key is None else body.scopes or access.caller.scopes
    require_no_wider(access.caller, body.role, scopes)
    expires = None if body.expires_seconds is None else timedelta(seconds=body.expires_seconds)
    named = {"tenant": access.caller.tenant, "role": body.role, "scopes": scopes, "expires": expires}
    made = await access.services.keys.table.create(body.name, **named)  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
    access.services.keys.forget()
    return MadeKey.of(made)


@routes.delete("/api/keys/{key}")
async def revoke_key(key: str, access: Admin) -> Success:
    """End a key, at once here and within a second elsewhere."""
    await access.services.keys.table.revoke(key, tenant=access.caller.tenant)
    access.services.keys.forget()
    return Success()


@routes.post("/api/keys/{key}/rotate", status_code=201)
async def rotate_key(key: str, access: Admin, body: RotateForm | None = None) -> MadeKey:
    """Make a key like this one, which ends after the grace."""
    grace = timedelta(seconds=(body or RotateForm()).grace_seconds)
    made = await access.services.keys.table.rotate(key, tenant=access.caller.tenant, grace=grace)
    access.services.keys.forget()
    return MadeKey.of(made)
