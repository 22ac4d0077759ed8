"""The check of every URL that a user or a remote server supplies: resolved once, public, connected to by its IP."""

from __future__ import annotations

import asyncio
import ipaddress
import socket
from collections.abc import Sequence
from dataclasses import dataclass
from urllib.parse import urlsplit, urlunsplit

from bough.errors import InvalidInput, PermissionDenied
from bough.execution.destination import is_public

_MAX_LENGTH = 2000
_PORTS = {"http": 80, "https": 443}


@dataclass(frozen=True, kw_only=True)
class CheckedAddress:
    """A URL that may be called.

    Attributes:
        url: With the checked IP address instead of the host name.
        host: The original host name, for the `Host` header and the certificate check.
    """

    url: str
    host: str


async def check_address(url: str, networks: Sequence[str] = (), *, setting: str = "webhook_networks") -> CheckedAddress:
    """Return a URL that may be called, with its host name resolved.

    Args:
        networks: Private networks that may be called, also over plain HTTP.
        setting: The setting that lists them, for the error's hint.

    Raises:
        InvalidInput: It is not an HTTP URL, or its host name cannot be resolved.
        PermissionDenied: It leads to this machine or a private network, or is not encrypted.
    """
    try:
        parts = urlsplit(url)
        host, port = parts.hostname or "", parts.port or _PORTS.get(parts.scheme, 0)
    except ValueError:
        host, port, parts = "", 0, urlsplit("")
    if (
        len(url) > _MAX_LENGTH
        or parts.scheme not in _PORTS
        or not host
        or not port
        or parts.username
        or not url.isascii()
    ):
        raise InvalidInput("url: not an address that can be called", hint="for example https://example.org/hook")
    number = await _resolve(host, port)
    allowed = [ipaddress.ip_network(network, strict=False) for network in networks]
    addresses = [ipaddress.ip_address(item) for item in number]
    plain = [getattr(item, "ipv4_mapped", None) or item for item in addresses]
    listed = all(any(item in network for network in allowed if network.version == item.version) for item in plain)
    if not listed and not all(is_public(str(item)) for item in plain):
        raise PermissionDenied(
            "url: it leads to this machine or a private network", hint=f"the operator can list it in {setting}"
        )
    if parts.scheme == "http" and not listed:
        raise PermissionDenied("url: it is not encrypted", hint="use https")
    # The URL contains the checked IP address: a second lookup could return a private one (DNS rebinding).
    first = f"[{plain[0]}]" if plain[0].version == 6 else str(plain[0])
    netloc = f"{first}:{port}"
    host_header = f"{host}:{port}" if parts.port else host
    return CheckedAddress(url=urlunsplit((parts.scheme, netloc, parts.path or "/", parts.query, "")), host=host_header)


async def _resolve(host: str, port: int) -> list[str]:
    try:
        entries = await asyncio.get_running_loop().getaddrinfo(host, port, type=socket.SOCK_STREAM)
    except (OSError, UnicodeError) as error:
        raise InvalidInput("url: its name is not known", hint="check the host") from error
    return [str(entry[4][0]).partition("%")[0] for entry in entries]
