"""Hide the password of a store's URL."""

from __future__ import annotations

from urllib.parse import urlsplit, urlunsplit


def hide_password(url: str) -> str:
    """Return a URL without its password."""
    parts = urlsplit(url)
    if parts.password is None:
        return url
    user = f"{parts.username}:***@" if parts.username else ""
    port = f":{parts.port}" if parts.port else ""
    return urlunsplit(parts._replace(netloc=f"{user}{parts.hostname or ''}{port}"))
