"""Checks URLs that users or remote servers supply: the host must be public, and is resolved only once."""

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
        url: The URL with the checked IP address in place of the host name.
        host: The original host name, for the `Host` header and the certificate check.
    """

    url: str
    host: str


async def check_address(url: str, networks: Sequence[str] = (), *, setting: str = "webhook_networks") -> CheckedAddress:
    """Check a URL that is to be called, and return its checked address.

    Args:
        networks: Private networks that may be called, also over plain HTTP.
        setting: The setting that lists these networks, for the hint of an error.

    Raises:
        InvalidInput: The URL is not an HTTP URL, or its host name cannot be resolved.
        PermissionDenied: The URL leads to this machine or a private network, or is not encrypted.
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
    allowed = [ipaddress.ip_network(network, strict=False) for network in networks]
    # `::ffff:10.0.0.1` is an IPv4 address, and is checked as one.
    addresses = [
        getattr(address, "ipv4_mapped", None) or address
        for address in map(ipaddress.ip_address, await _resolve(host, port))
    ]
    is_listed = all(
        any(address in network for network in allowed if network.version == address.version) for address in addresses
    )
    # All addresses of the name are checked: its owner decides which of them comes first.
    if not is_listed and not all(is_public(str(address)) for address in addresses):
        raise PermissionDenied(
            "url: it leads to this machine or a private network", hint=f"the operator can list the network in {setting}"
        )
    if parts.scheme == "http" and not is_listed:
        raise PermissionDenied("url: it is not encrypted", hint="use https")
    # The URL contains the checked IP address: a second lookup could return a private one (DNS rebinding).
    ip_address = f"[{addresses[0]}]" if addresses[0].version == 6 else str(addresses[0])
    netloc = f"{ip_address}:{port}"
    host_header = f"{host}:{port}" if parts.port else host
    return CheckedAddress(url=urlunsplit((parts.scheme, netloc, parts.path or "/", parts.query, "")), host=host_header)


async def _resolve(host: str, port: int) -> list[str]:
    try:
        entries = await asyncio.get_running_loop().getaddrinfo(host, port, type=socket.SOCK_STREAM)
    except (OSError, UnicodeError) as error:
        raise InvalidInput("url: its host cannot be resolved", hint="check the host name") from error
    return [str(entry[4][0]).partition("%")[0] for entry in entries]
