"""Names of files and folders in a request."""

from __future__ import annotations

import os

from bough.errors import InvalidInput


def split_name(name: str, *, subject: str = "file name") -> list[str]:
    """Return the parts of a relative path.

    Raises:
        InvalidInput: It is empty, absolute, too long, has half a surrogate pair, a NUL, a backslash, an empty part, `.`
            or `..`.
    """
    parts = name.split("/")
    bad = not name or "\0" in name or "\\" in name or not 0 < _size_bytes(name) <= 1024
    if bad or any(part in ("", ".", "..") or _size_bytes(part) > 255 for part in parts):
        raise InvalidInput(
            f"The {subject} {name[:200]!a} is not a plain relative path.",
            hint="Use forward slashes, no leading slash, no '..', no backslash, at most 1024 bytes.",
        )
    return parts


def _size_bytes(name: str) -> int:
    """Return how long a name is for the system; 0 when it cannot be one, because of half a surrogate pair."""
    try:
        return len(os.fsencode(name))
    except UnicodeEncodeError:
        return 0
