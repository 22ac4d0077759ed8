"""The style, scripts and icons of the page, and the policy that allows a screen to use exactly these."""

from __future__ import annotations

from base64 import b64encode
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from gzip import compress
from hashlib import sha256
from importlib.resources import files

_MEDIA_TYPES: Mapping[str, str] = {".js": "text/javascript; charset=utf-8", ".svg": "image/svg+xml"}
_STYLE, _THEME = "style.css", "theme.js"
COMMON_MODULES = ("core.js", "keys.js")
"""The modules of every screen."""


@dataclass(frozen=True)
class Asset:
    """One file of `static/`.

    Attributes:
        url: Its address, which changes with the version of the assets.
        integrity: Its SHA-256, as a browser compares it.
    """

    url: str
    content: bytes
    compressed: bytes
    media_type: str
    integrity: str


class Assets:
    """All files of `static/`, read once.

    Attributes:
        version: Changes whenever any file changes.
        files: The files that have an address, by name.
        style: The style sheet, which each page contains: a browser allows only an inline one by its hash.
        theme: The script that sets the theme before the first paint, also inline.
    """

    def __init__(self) -> None:
        contents = {
            file.name: file.read_bytes() for file in files("bough.web").joinpath("static").iterdir() if file.is_file()
        }
        self.version = sha256(b"".join(name.encode() + contents[name] for name in sorted(contents))).hexdigest()[:12]
        self.style = contents[_STYLE].decode()
        self.theme = contents[_THEME].decode()
        self.files = {
            name: self._make_asset(name, content) for name, content in contents.items() if name not in (_STYLE, _THEME)
        }
        self._policies: dict[Sequence[str], str] = {}

    def _make_asset(self, name: str, content: bytes) -> Asset:
        return Asset(
            url=f"/static/{self.version}/{name}",
            content=content,
            compressed=compress(content, mtime=0),
            media_type=_MEDIA_TYPES[name[name.rindex(".") :]],
            integrity=_hash(content),
        )

    def make_policy(self, modules: tuple[str, ...]) -> str:
        """Return the `Content-Security-Policy` of a screen that uses these modules."""
        policy = self._policies.get(modules)
        if policy is None:
            scripts = [_hash(self.theme.encode()), *(self.files[name].integrity for name in modules)]
            policy = self._policies[modules] = "; ".join((
                "default-src 'none'",
                "script-src " + " ".join(f"'{value}'" for value in scripts),
                f"style-src '{_hash(self.style.encode())}'",
                "img-src 'self'",
                "connect-src 'self'",
                "form-action 'self'",
                "base-uri 'none'",
                "frame-ancestors 'none'",
                "require-trusted-types-for 'script'",
                "trusted-types bough",
            ))  # fmt: skip
        return policy


def _hash(content: bytes) -> str:
    return f"sha256-{b64encode(sha256(content).digest()).decode()}"
