"""Signing in and out on the page, and the one-time tickets of `bough web`."""

from __future__ import annotations

import secrets
import time
from dataclasses import dataclass
from typing import Final
from urllib.parse import urlsplit

from starlette.requests import Request
from starlette.responses import RedirectResponse, Response

from bough.errors import PermissionDenied, Unauthenticated
from bough.server.access import read_services
from bough.server.auth.caller import Caller
from bough.server.auth.cookies import clear_session, set_session
from bough.server.auth.keys import IDLE, SESSION, KeyTable, hash_key, new_key_text, read_key_id
from bough.server.auth.sessions import BrowserSession
from bough.server.auth.verification import Keys
from bough.server.metrics import Metrics
from bough.server.routes.session import open_session_for

TICKET_SECONDS: Final = 60.0
_MAX_KEY_CHARS: Final = 200


async def sign_in(request: Request) -> Response:
    """Open a session with the key of the form, and go to the page that asked for it.

    Raises:
        Unauthenticated: The key is not valid.
    """
    form = await request.form(max_files=0, max_fields=10)
    key, next_path = form.get("key", ""), form.get("next", "")
    if not isinstance(key, str) or not 0 < len(key.strip()) <= _MAX_KEY_CHARS:
        raise Unauthenticated("the key is not valid", hint="`bough keys create` creates a key")
    response = RedirectResponse(read_next(next_path if isinstance(next_path, str) else ""), 303)
    await open_session_for(request, response, key.strip())
    return response


async def sign_out(request: Request, caller: Caller) -> Response:
    """End the session of the caller."""
    if caller.session is not None:
        await read_services(request).keys.end_session(caller.session)
    response = RedirectResponse("/signin", 303)
    clear_session(request, response)
    return response


def read_next(path: str) -> str:
    """Return a path of this server to go to after signing in; `/` for anything else."""
    try:
        parts = urlsplit(path)
    except ValueError:
        return "/"
    # `//host` and `/\host` are addresses of other servers for browsers.
    is_own = path.startswith("/") and not path.startswith(("//", "/\\")) and not parts.netloc and path.isprintable()
    # The address of a refused form is that of its action, which has no screen.
    return path if is_own and not path.startswith(("/signin", "/do/")) else "/"


def read_return_path(request: Request) -> str:
    """Return the path of the screen to go back to after a sign-in: the one that was asked for, or whose form was sent.

    A form is not sent again: what it decides may have changed.
    """
    if request.method == "GET":
        return read_next(request.url.path + (f"?{request.url.query}" if request.url.query else ""))
    # The page's `Referrer-Policy` sends the address of a form's page to this server alone.
    address = request.headers.get("referer", "")
    return read_next(address.removeprefix(f"{request.url.scheme}://{request.url.netloc}"))


@dataclass
class _OpenSession:
    """A session in memory; its times are those of the monotonic clock."""

    digest: bytes
    caller: Caller
    ends: float
    used: float


class TicketKeys(Keys):
    """The sessions of `bough web`, in the memory of its process. No key opens the server, only a ticket.

    Loopback is shared by all users and containers of a machine, and the page can run commands; so even there a browser
    needs what only the person at the terminal has.
    """

    def __init__(self, table: KeyTable, metrics: Metrics) -> None:
        super().__init__(table, metrics)
        self._tickets: dict[bytes, float] = {}
        self._sessions: dict[str, _OpenSession] = {}

    def make_ticket(self) -> str:
        """Return a ticket, which opens one session within a minute."""
        ticket = secrets.token_urlsafe(32)
        self._tickets[hash_key(ticket)] = time.monotonic() + TICKET_SECONDS
        return ticket

    def enter(self, ticket: str) -> str:
        """Open a session with a ticket, and return the text of its key. The ticket is void then.

        Raises:
            Unauthenticated: The ticket was used, or is older than a minute.
        """
        # Removed before anything else, so that of two requests at once only one opens a session.
        ends = self._tickets.pop(hash_key(ticket), 0.0)
        now = time.monotonic()
        if ends <= now:
            raise _make_refusal()
        text = new_key_text()
        id = read_key_id(text)
        caller = Caller(name="web", session=id)
        self._sessions[id] = _OpenSession(hash_key(text), caller, now + SESSION.total_seconds(), now)
        return text

    async def are_needed(self) -> bool:
        """Whether callers need a session; always."""
        return True

    async def authenticate(self, key: str | None, client: str) -> Caller:
        """Return the person at the terminal.

        Raises:
            Unauthenticated: The request has no valid session.
        """
        caller = self._find(key)
        if caller is None:
            raise _make_refusal()
        return caller

    async def require_valid(self, key: str | None) -> None:
        """Check that an open stream may continue.

        Raises:
            Unauthenticated: Its session has ended.
        """
        if self._find(key, is_use=False) is None:
            raise _make_refusal()

    async def open_session(self, caller: Caller) -> BrowserSession:
        """Refuse: only a ticket opens a session.

        Raises:
            PermissionDenied: Always.
        """
        raise PermissionDenied("a ticket opens a session here", hint="open the address that `bough web` prints")

    async def end_session(self, id: str) -> None:
        """End a session."""
        self._sessions.pop(id, None)

    def _find(self, key: str | None, *, is_use: bool = True) -> Caller | None:
        """Return the person of a session; None if it is unknown or has ended."""
        parts = (key or "").split("_", 2)
        session = self._sessions.get(parts[1]) if len(parts) == 3 else None
        if key is None or session is None or not secrets.compare_digest(session.digest, hash_key(key)):
            return None
        now = time.monotonic()
        if session.ends <= now or now - session.used >= IDLE.total_seconds():
            del self._sessions[parts[1]]
            return None
        if is_use:
            session.used = now
        return session.caller


async def enter(request: Request) -> Response:
    """Open a session with the ticket of the address, and go to the conversation of `?to=`, or to the list.

    Raises:
        Unauthenticated: The ticket is void, or this server has none.
    """
    keys = read_services(request).keys
    if not isinstance(keys, TicketKeys):
        raise _make_refusal()
    text = keys.enter(request.path_params["ticket"])
    response = RedirectResponse(read_next(request.query_params.get("to", "/")), 303)
    set_session(request, response, text)
    return response


def _make_refusal() -> Unauthenticated:
    return Unauthenticated(
        "a browser needs the address that `bough web` prints",
        hint="open that address; press Enter in the terminal of `bough web` for a new one",
    )
