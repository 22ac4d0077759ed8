"""What a route works with: the caller, the store as the caller may see it, the services. One dependency a right."""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from dataclasses import dataclass, field
from typing import Annotated, Any, TypeAlias

from fastapi import Depends, Request, WebSocket
from fastapi.security import APIKeyHeader, HTTPBearer
from starlette.requests import HTTPConnection

from bough.errors import Unauthenticated
from bough.server.auth.caller import Caller, Role
from bough.server.auth.owned import OwnedStore
from bough.server.services import Services


@dataclass(frozen=True, kw_only=True)
class Access:
    """What a route works with: the caller, and the store as the caller may see it.

    Attributes:
        key: What the caller showed, which a stream is held to while it is open.
    """

    caller: Caller
    store: OwnedStore
    services: Services
    key: str | None = field(default=None, repr=False)


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
    store = OwnedStore(
        services.store, caller.owner, metrics=services.metrics, admit=services.conversation_limits.require
    )
    return Access(caller=caller, store=store, services=services, key=key)


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
EvalReader: TypeAlias = Annotated[Access, Depends(_requires("read", "evals"))]
WebhookAdmin: TypeAlias = Annotated[Access, Depends(_requires("admin", "webhooks"))]


def services_of(connection: Request | WebSocket) -> Services:
    """Return what the application works with."""
    services: Services = connection.app.state.services
    return services
