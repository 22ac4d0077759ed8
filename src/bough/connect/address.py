"""The one check of an address that we are told to call: resolved once, public, and connected to as it was checked."""

from __future__ import annotations

import asyncio
import ipaddress
import socket
from collections.abc import Sequence
from dataclasses import dataclass
from urllib.parse import urlsplit, urlunsplit

from bough.errors import InvalidInput, PermissionDenied
from bough.execution.process.public_address import is_public

_MAX_LENGTH = 2000
_PORTS = {"http": 80, "https": 443}


@dataclass(frozen=True, kw_only=True)
class CheckedAddress:
    """An address that was checked.

    Attributes:
        url: With the number that the name stood for, so that no other one is connected to.
        host: What the `Host` header and the certificate say.
    """

    url: str
    host: str


async def check_address(url: str, networks: Sequence[str] = (), *, setting: str = "webhook_networks") -> CheckedAddress:
    """Return an address that may be called.

    Args:
        networks: Private networks that may be called, over plain HTTP too.
        setting: Where they are listed, for the error's hint.

    Raises:
        InvalidInput: It is not an address of HTTP, or its name is not known.
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
    found = [ipaddress.ip_address(each) for each in number]
    plain = [getattr(each, "ipv4_mapped", None) or each for each in found]
    listed = all(any(each in network for network in allowed if network.version == each.version) for each in plain)
    if not listed and not all(is_public(str(each)) for each in plain):
        raise PermissionDenied(
            "url: it leads to this machine or a private network", hint=f"the operator can list it in {setting}"
        )
    if parts.scheme == "http" and not listed:
        raise PermissionDenied("url: it is not encrypted", hint="use https")
    first = f"[{plain[0]}]" if plain[0].version == 6 else str(plain[0])
    netloc = f"{first}:{port}"
    named = f"{host}:{port}" if parts.port else host
    return CheckedAddress(url=urlunsplit((parts.scheme, netloc, parts.path or "/", parts.query, "")), host=named)


async def _resolve(host: str, port: int) -> list[str]:
    try:
        found = await asyncio.get_running_loop().getaddrinfo(host, port, type=socket.SOCK_STREAM)
    except (OSError, UnicodeError) as error:
        raise InvalidInput("url: its name is not known", hint="check the host") from error
    return [str(entry[4][0]).partition("%")[0] for entry in found]
