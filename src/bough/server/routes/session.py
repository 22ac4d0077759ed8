"""Routes for the session of a browser: sign in with a key, look, sign out."""

from __future__ import annotations

from fastapi import Request, Response
from pydantic import BaseModel, Field
from starlette.status import HTTP_201_CREATED, HTTP_204_NO_CONTENT

from bough.errors import Conflict
from bough.server.access import SignedIn, read_services
from bough.server.auth.caller import Caller, Role
from bough.server.auth.cookies import (
    clear_session,
    make_csrf_token,
    read_session,
    require_private,
    set_session,
)
from bough.server.bodies.base import Form, Stamp, stamp
from bough.server.requests.routing import router

routes = router("Session")


class SignIn(Form):
    """The key to sign in with."""

    key: str = Field(min_length=1, max_length=200, repr=False)


class SessionInfo(BaseModel):
    """The session of a browser.

    Attributes:
        csrf_token: Sent as `X-CSRF-Token` with each request that changes something; null without a cookie.
        expires: When the session ends at the latest; only in the response to a sign-in.
    """

    tenant: str
    name: str
    role: Role
    csrf_token: str | None
    expires: Stamp | None = None


@routes.post("/auth/session", status_code=HTTP_201_CREATED)
async def sign_in(body: SignIn, request: Request, response: Response) -> SessionInfo:
    """Open a session: the browser gets a cookie with the rights of the key. It ends after 12 hours, or 30 idle minutes.

    The session ends with its key. A wrong key is refused as in a header.
    """
    return await open_session_for(request, response, body.key)


@routes.get("/auth/session")
async def get_session(request: Request, access: SignedIn) -> SessionInfo:
    """Return whose session it is, and the token that requests need which change something."""
    session = read_session(request) if access.caller.session is not None else None
    return _describe(access.caller, None if session is None else make_csrf_token(session))


@routes.delete("/auth/session", status_code=HTTP_204_NO_CONTENT)
async def sign_out(request: Request, response: Response, access: SignedIn) -> None:
    """End the session."""
    if access.caller.session is not None:
        await access.services.keys.end_session(access.caller.session)
    clear_session(request, response)


async def open_session_for(request: Request, response: Response, key: str) -> SessionInfo:
    """Open a session with a key, and set its cookie.

    Raises:
        Unauthenticated: The key is not valid.
        Conflict: The server needs no key.
        PermissionDenied: The connection is not private.
    """
    require_private(request)
    services = read_services(request)
    if not await services.keys.are_needed():
        raise Conflict("this server needs no key", hint="open the page without signing in")
    client = request.client.host if request.client else ""
    caller = await services.keys.authenticate(key, client)
    session = await services.keys.open_session(caller)
    set_session(request, response, session.text)
    return _describe(caller, make_csrf_token(session.text)).model_copy(update={"expires": stamp(session.expires)})


def _describe(caller: Caller, csrf_token: str | None) -> SessionInfo:
    return SessionInfo(tenant=caller.tenant, name=caller.name, role=caller.role, csrf_token=csrf_token)
