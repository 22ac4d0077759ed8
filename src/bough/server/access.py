"""What a route works with: the caller, the store as the caller may see it, the services. One dependency a right."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Annotated, TypeAlias

from fastapi import Depends, Request, WebSocket
from starlette.requests import HTTPConnection

from bough.errors import Unauthenticated
from bough.server.auth.caller import Caller, Role
from bough.server.auth.owned import OwnedStore
from bough.server.requests.routing import NeedsKey
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


def read_key(connection: HTTPConnection) -> str | None:
    """Return the key that a request carries in one of the two headers.

    Raises:
        Unauthenticated: Several headers carry keys, and these differ.
    """
    keys = connection.headers.getlist("x-session-api-key")
    for value in connection.headers.getlist("authorization"):
        scheme, _, token = value.partition(" ")
        if scheme.lower() == "bearer":
            keys.append(token.strip())
    if len(set(filter(None, keys))) > 1:
        raise Unauthenticated("different keys were sent", hint="send one")
    return next(filter(None, keys), None)


async def authenticate(connection: HTTPConnection, key: str | None) -> Access:
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


class Right(NeedsKey):
    """What a route's caller must be allowed: a dependency."""

    def __init__(self, role: Role, *scopes: str) -> None:
        self._role: Role = role
        self._scopes = scopes

    async def __call__(self, request: Request) -> Access:
        """Return what the caller may work with.

        Raises:
            PermissionDenied: The key's role is too small, or it lacks a scope.
        """
        granted: dict[Right, Access] = request.scope.setdefault("granted", {})
        if self not in granted:
            access = await authenticate(request, read_key(request))
            access.caller.require(self._role, *self._scopes)
            granted[self] = access
        return granted[self]


Reader: TypeAlias = Annotated[Access, Depends(Right("read", "conversations"))]
Writer: TypeAlias = Annotated[Access, Depends(Right("write", "conversations"))]
Approver: TypeAlias = Annotated[Access, Depends(Right("write", "conversations", "approve"))]
Asker: TypeAlias = Annotated[Access, Depends(Right("write", "conversations", "ask"))]
Admin: TypeAlias = Annotated[Access, Depends(Right("admin"))]
FileReader: TypeAlias = Annotated[Access, Depends(Right("read", "files"))]
FileWriter: TypeAlias = Annotated[Access, Depends(Right("write", "files"))]
CommandReader: TypeAlias = Annotated[Access, Depends(Right("read", "commands"))]
CommandWriter: TypeAlias = Annotated[Access, Depends(Right("write", "commands"))]
SkillReader: TypeAlias = Annotated[Access, Depends(Right("read", "skills"))]
AgentReader: TypeAlias = Annotated[Access, Depends(Right("read", "agents"))]
TaskReader: TypeAlias = Annotated[Access, Depends(Right("read", "tasks"))]
TaskWriter: TypeAlias = Annotated[Access, Depends(Right("write", "tasks"))]
EvalReader: TypeAlias = Annotated[Access, Depends(Right("read", "evals"))]
WebhookAdmin: TypeAlias = Annotated[Access, Depends(Right("admin", "webhooks"))]


def read_services(connection: Request | WebSocket) -> Services:
    """Return what the application works with."""
    services: Services = connection.app.state.services
    return services
