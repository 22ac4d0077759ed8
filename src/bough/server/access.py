"""The dependencies of routes: one for each right, which returns the caller, its view of the store, and the services.

An open stream ends when the key that opened it is revoked or expires, or when its tenant is disabled.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncGenerator, Callable
from dataclasses import dataclass, field
from typing import Annotated, Protocol, TypeAlias

from fastapi import Depends, Request, WebSocket
from starlette.requests import HTTPConnection

from bough.errors import BoughError, Unauthenticated
from bough.server.auth.caller import Caller, Role
from bough.server.auth.cookies import CSRF_HEADER, read_session, require_own_page
from bough.server.auth.owned import OwnedStore
from bough.server.requests.routing import NeedsKey
from bough.server.services import Services


@dataclass(frozen=True, kw_only=True)
class Access:
    """The caller of a request, and its view of the store.

    Attributes:
        key: The key of the request; an open stream checks again that it is valid.
    """

    caller: Caller
    store: OwnedStore
    services: Services
    key: str | None = field(default=None, repr=False)


def read_key(connection: HTTPConnection) -> str | None:
    """Return the key that a request carries in one of the two headers.

    Raises:
        Unauthenticated: The headers carry different keys.
    """
    keys = connection.headers.getlist("x-session-api-key")
    for value in connection.headers.getlist("authorization"):
        scheme, _, token = value.partition(" ")
        if scheme.lower() == "bearer":
            keys.append(token.strip())
    keys = [key for key in keys if key]
    if len(set(keys)) > 1:
        raise Unauthenticated("different keys were sent", hint="send only one key")
    return keys[0] if keys else None


async def authenticate(connection: HTTPConnection, key: str | None) -> Access:
    """Return the access that a key grants.

    Raises:
        Unauthenticated: The server needs a key, and the key is missing or invalid.
        LimitExceeded: The caller sends too many requests.
    """
    services: Services = connection.app.state.services
    client = connection.client.host if connection.client else ""
    caller = await services.keys.authenticate(key, client)
    connection.scope.setdefault("state", {})["caller"] = caller
    services.limits.count_request(caller)
    store = OwnedStore(
        services.store, caller.owner, metrics=services.metrics, admit=services.conversation_limits.require
    )
    return Access(caller=caller, store=store, services=services, key=key)


_SAFE_METHODS = frozenset({"GET", "HEAD", "OPTIONS"})


class Right(NeedsKey):
    """A dependency that requires a role and scopes of a route's caller."""

    def __init__(self, role: Role, *scopes: str) -> None:
        self._role: Role = role
        self._scopes = scopes

    async def __call__(self, request: Request) -> Access:
        """Return the caller's access.

        Raises:
            PermissionDenied: The key's role is too low, or it lacks a scope.
        """
        # Authenticated once per request: several dependencies of a route must not count as several requests.
        granted: dict[Right, Access] = request.scope.setdefault("granted", {})
        if self not in granted:
            key = read_key(request)
            # A key in a header wins: only a program sends one, and no page of another site can make a browser do so.
            session = read_session(request) if key is None and "cookie" in request.headers else None
            access = await authenticate(request, key or session)
            if session is not None and request.method not in _SAFE_METHODS:
                require_own_page(request, session, request.headers.get(CSRF_HEADER))
            access.caller.require(self._role, *self._scopes)
            granted[self] = access
        return granted[self]


SignedIn: TypeAlias = Annotated[Access, Depends(Right("read"))]
Reader: TypeAlias = Annotated[Access, Depends(Right("read", "conversations"))]
Writer: TypeAlias = Annotated[Access, Depends(Right("write", "conversations"))]
Approver: TypeAlias = Annotated[Access, Depends(Right("write", "conversations", "approve"))]
Asker: TypeAlias = Annotated[Access, Depends(Right("write", "conversations", "ask"))]
Admin: TypeAlias = Annotated[Access, Depends(Right("admin"))]
FileReader: TypeAlias = Annotated[Access, Depends(Right("read", "files"))]
FileWriter: TypeAlias = Annotated[Access, Depends(Right("write", "files"))]
ConversationFileWriter: TypeAlias = Annotated[Access, Depends(Right("write", "conversations", "files"))]
CommandReader: TypeAlias = Annotated[Access, Depends(Right("read", "commands"))]
CommandWriter: TypeAlias = Annotated[Access, Depends(Right("write", "commands"))]
SkillReader: TypeAlias = Annotated[Access, Depends(Right("read", "skills"))]
AgentReader: TypeAlias = Annotated[Access, Depends(Right("read", "agents"))]
TaskReader: TypeAlias = Annotated[Access, Depends(Right("read", "tasks"))]
TaskWriter: TypeAlias = Annotated[Access, Depends(Right("write", "tasks"))]
EvalReader: TypeAlias = Annotated[Access, Depends(Right("read", "evals"))]
WebhookAdmin: TypeAlias = Annotated[Access, Depends(Right("admin", "webhooks"))]


def read_services(connection: Request | WebSocket) -> Services:
    """Return the services of the application."""
    services: Services = connection.app.state.services
    return services


CHECK_SECONDS = 1.0
"""The time between two checks of an open stream's key."""


async def wait_refused(access: Access) -> None:
    """Return when the key of an open stream is no longer valid. Checks it once a second."""
    while True:
        await asyncio.sleep(CHECK_SECONDS)
        try:
            await access.services.keys.require_valid(access.key)
        except Unauthenticated:
            return
        except BoughError:
            continue  # the store is unavailable, and the key may still be valid: keep the stream open


class Wakeable(Protocol):
    """A source of a stream, which can be told to look again."""

    def wake(self) -> None:
        """Wake all readers."""
        ...


@contextlib.asynccontextmanager
async def watch_key(access: Access, source: Wakeable) -> AsyncGenerator[Callable[[], bool]]:
    """Yield a function that returns whether the key of a stream has become invalid."""
    refusal = asyncio.create_task(wait_refused(access), name="key of a stream")
    refusal.add_done_callback(lambda _: source.wake())  # a reader that waits for events would not notice it
    try:
        yield refusal.done
    finally:
        refusal.cancel()
        await asyncio.gather(refusal, return_exceptions=True)
