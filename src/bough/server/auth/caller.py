"""Who asks: the tenant, the key, what the key may do. Routes get one of the dependencies at the end of this file."""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Annotated, Any, Literal, TypeAlias

from fastapi import Depends, Request, WebSocket
from fastapi.security import APIKeyHeader, HTTPBearer
from starlette.requests import HTTPConnection

from bough.errors import PermissionDenied, Unauthenticated
from bough.server.auth.owned import OwnedStore

if TYPE_CHECKING:
    from bough.server.services import Services

LOCAL = "local"
"""The tenant of the command line: the conversations without an owner."""

Role: TypeAlias = Literal["read", "write", "admin"]
ROLES: tuple[Role, ...] = ("read", "write", "admin")
SCOPES = frozenset({
    "conversations", "approve", "ask", "files", "commands", "tasks", "skills", "agents", "evals", "webhooks", "mcp",
    "a2a",
})  # fmt: skip
"""What a key may be limited to; a key without a list has all."""


@dataclass(frozen=True, kw_only=True)
class Caller:
    """Who asks.

    Attributes:
        key: Id of the key; None where the server has none and everybody on this machine is trusted.
        name: Name of the key, for the record of who did it.
    """

    tenant: str = LOCAL
    key: str | None = None
    name: str = "local"
    role: Role = "admin"
    scopes: frozenset[str] = field(default=SCOPES)

    @property
    def owner(self) -> str | None:
        """What the rows of its tenant have in their column `owner`."""
        return None if self.tenant == LOCAL else self.tenant

    def may(self, role: Role) -> bool:
        """Whether its role is `role` or one that contains it."""
        return ROLES.index(self.role) >= ROLES.index(role)

    def require(self, role: Role, *scopes: str) -> None:
        """Check the right.

        Raises:
            PermissionDenied: The key's role is too small, or it lacks a scope.
        """
        if not self.may(role):
            raise PermissionDenied(f"this needs a key with the role {role}", hint=f"the key's role is {self.role}")
        missing = [scope for scope in scopes if scope not in self.scopes]
        if missing:
            raise PermissionDenied(f"this needs a key with the scope {missing[0]}", hint="make one with that scope")


@dataclass(frozen=True, kw_only=True)
class Access:
    """What a route works with: the caller, and the store as the caller may see it."""

    caller: Caller
    store: OwnedStore
    services: Services


_header = APIKeyHeader(name="X-Session-API-Key", auto_error=False, description="A key of `bough keys create`.")
_bearer = HTTPBearer(auto_error=False, description="The same key as a bearer token.")


def key_of(connection: HTTPConnection) -> str | None:
    """Return the key that a request carries in one of the two headers.

    Raises:
        Unauthenticated: The two headers are there and differ.
    """
    given = connection.headers.get("x-session-api-key")
    scheme, _, token = connection.headers.get("authorization", "").partition(" ")
    bearer = token.strip() if scheme.lower() == "bearer" else None
    if given and bearer and given != bearer:
        raise Unauthenticated("two different keys were sent", hint="send one")
    return given or bearer


async def access_of(connection: HTTPConnection, key: str | None) -> Access:
    """Return what the holder of a key may work with.

    Raises:
        Unauthenticated: The key is needed and missing, or not a valid one.
        LimitExceeded: The caller asks too often.
    """
    services: Services = connection.app.state.services
    client = connection.client.host if connection.client else ""
    caller = await services.keys.caller_of(key, client)
    connection.scope.setdefault("state", {})["caller"] = caller
    services.limits.count_request(caller)
    return Access(caller=caller, store=OwnedStore(services.store, caller.owner), services=services)


def _requires(role: Role, *scopes: str) -> Callable[..., Coroutine[Any, Any, Access]]:
    async def dependency(request: Request, _h: _Header = None, _b: _Bearer = None) -> Access:
        access = await access_of(request, key_of(request))
        access.caller.require(role, *scopes)
        return access

    return dependency


_Header: TypeAlias = Annotated[Any, Depends(_header)]
_Bearer: TypeAlias = Annotated[Any, Depends(_bearer)]

Reader: TypeAlias = Annotated[Access, Depends(_requires("read", "conversations"))]
Writer: TypeAlias = Annotated[Access, Depends(_requires("write", "conversations"))]
Approver: TypeAlias = Annotated[Access, Depends(_requires("write", "conversations", "approve"))]
Asker: TypeAlias = Annotated[Access, Depends(_requires("write", "conversations", "ask"))]
Admin: TypeAlias = Annotated[Access, Depends(_requires("admin"))]
FileReader: TypeAlias = Annotated[Access, Depends(_requires("read", "files"))]
FileWriter: TypeAlias = Annotated[Access, Depends(_requires("write", "files"))]
CommandReader: TypeAlias = Annotated[Access, Depends(_requires("read", "commands"))]
CommandWriter: TypeAlias = Annotated[Access, Depends(_requires("write", "commands"))]
SkillReader: TypeAlias = Annotated[Access, Depends(_requires("read", "skills"))]
AgentReader: TypeAlias = Annotated[Access, Depends(_requires("read", "agents"))]
TaskReader: TypeAlias = Annotated[Access, Depends(_requires("read", "tasks"))]
TaskWriter: TypeAlias = Annotated[Access, Depends(_requires("write", "tasks"))]
WebhookAdmin: TypeAlias = Annotated[Access, Depends(_requires("admin", "webhooks"))]


def services_of(connection: Request | WebSocket) -> Services:
    """Return what the application works with."""
    services: Services = connection.app.state.services
    return services
