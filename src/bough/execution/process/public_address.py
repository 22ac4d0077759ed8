"""Whether an address is of the public network: what a proxy lets through, and what this process itself calls."""

from __future__ import annotations

import ipaddress
from typing import Final

_EMBEDDING: Final = tuple(map(ipaddress.IPv6Network, ("::ffff:0:0/96", "::/96", "64:ff9b::/96", "64:ff9b:1::/48")))
"""Networks of version 6 whose addresses end with one of version 4."""

Address = ipaddress.IPv4Address | ipaddress.IPv6Address


def is_public(text: str) -> bool:
    """Whether an address, and the one of version 4 that may be in it, is of the public network."""
    address = ipaddress.ip_address(text.partition("%")[0])
    embedded = _find_embedded(address)
    if address.is_reserved and not embedded:
        return False
    return all(ip.is_global and not (ip.is_multicast or ip.is_unspecified) for ip in (address, *embedded))


def _find_embedded(address: Address) -> list[Address]:
    if isinstance(address, ipaddress.IPv4Address):
        return []
    embedded: list[Address] = []
    if any(address in network for network in _EMBEDDING):
        embedded.append(ipaddress.IPv4Address(int(address) & 0xFFFFFFFF))
    if address.sixtofour is not None:
        embedded.append(address.sixtofour)
    if address.teredo is not None:
        embedded += address.teredo
    return embedded
