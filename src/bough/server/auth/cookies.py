"""Cookies of the web page: the browser sends the key of a session with every request.

A cookie is sent with every request of a browser, so a request that changes something must also come from a page of this
server: it carries a token that only such a page contains, and the browser says that it is of the same origin.
"""

from __future__ import annotations

import hmac
from hashlib import sha256
from typing import Final
from urllib.parse import urlsplit

from starlette.requests import HTTPConnection
from starlette.responses import Response

from bough.errors import PermissionDenied
from bough.server.auth.keys import SESSION

CSRF_HEADER: Final = "x-csrf-token"
CSRF_FIELD: Final = "csrf_token"
_SECURE_COOKIE: Final = "__Host-bough"
_LOOPBACK_COOKIE: Final = "bough_session"
_LOOPBACK: Final = frozenset({"localhost", "127.0.0.1", "::1"})


def read_session(connection: HTTPConnection) -> str | None:
    """Return the text of the session's key that the browser sent; None if it sent none."""
    return connection.cookies.get(_SECURE_COOKIE if _is_secure(connection) else _LOOPBACK_COOKIE) or None


def require_private(connection: HTTPConnection) -> None:
    """Check that nobody on the network can read the key of a sign-in, and the cookie that it returns.

    Raises:
        PermissionDenied: The connection is plain HTTP to another machine.
    """
    if not _is_secure(connection) and connection.url.hostname not in _LOOPBACK:
        raise PermissionDenied(
            "signing in needs HTTPS", hint="serve over HTTPS, and list the proxy in server.trusted_proxies"
        )


def set_session(connection: HTTPConnection, response: Response, text: str) -> None:
    """Set the cookie with a session's key, which the browser then sends with every request to this server only."""
    is_secure = _is_secure(connection)
    name = _SECURE_COOKIE if is_secure else _LOOPBACK_COOKIE
    response.set_cookie(
        name, text, max_age=int(SESSION.total_seconds()), httponly=True, secure=is_secure, samesite="strict"
    )


def clear_session(connection: HTTPConnection, response: Response) -> None:
    """Delete the cookie with the session's key."""
    is_secure = _is_secure(connection)
    name = _SECURE_COOKIE if is_secure else _LOOPBACK_COOKIE
    response.delete_cookie(name, httponly=True, secure=is_secure, samesite="strict")


def make_csrf_token(session: str) -> str:
    """Return the token that the pages of a session contain."""
    return hmac.new(session.encode(), b"csrf", sha256).hexdigest()


def require_own_page(connection: HTTPConnection, session: str, token: str | None) -> None:
    """Check that a request that a browser authenticated by its cookie was made by a page of this server.

    Raises:
        PermissionDenied: The token is missing or wrong, or the page is of another origin.
    """
    is_same_origin = _is_same_origin(connection)
    # Both are checked: the token fails a page of another origin of the same site, the origin a token that leaked.
    if not is_same_origin or not hmac.compare_digest((token or "").encode(), make_csrf_token(session).encode()):
        raise PermissionDenied("the request was not made by a page of this server", hint="reload the page, then repeat")


def _is_same_origin(connection: HTTPConnection) -> bool:
    # A page cannot set this header, and every browser since 2023 sends it; `Origin` is for older ones.
    site = connection.headers.get("sec-fetch-site")
    if site is not None:
        return site == "same-origin"
    try:
        origin = urlsplit(connection.headers.get("origin", ""))
    except ValueError:
        return False
    return origin.netloc.lower() == connection.headers.get("host", "").lower() != ""


def _is_secure(connection: HTTPConnection) -> bool:
    return connection.url.scheme in ("https", "wss")
