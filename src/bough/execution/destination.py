"""Network destinations: the domains to which a run may connect, and which addresses are public."""

from __future__ import annotations

import ipaddress
from dataclasses import dataclass
from typing import Final

from bough.errors import InvalidInput

PORT: Final = 3128
"""The port of the proxy inside a sandbox."""

_DEFAULT_PORTS: Final = (80, 443)


@dataclass(frozen=True)
class DomainRule:
    """One entry of the allow-list.

    Attributes:
        host: A host name, or `*.` and a domain for every host below that domain.
        ports: The allowed ports.
    """

    host: str
    ports: tuple[int, ...] = _DEFAULT_PORTS

    @classmethod
    def parse(cls, text: str) -> DomainRule:
        """Parse `example.org`, `*.example.org` or `example.org:8080`.

        Raises:
            InvalidInput: The text is none of these.
        """
        host, _, port = text.partition(":")
        name = host.removeprefix("*.")
        is_plain = bool(name) and all(part and part.replace("-", "a").isalnum() for part in name.split("."))
        if not is_plain or not name.isascii() or (port and not (port.isdigit() and 0 < int(port) < 65536)):
            raise InvalidInput(
                f"The network domain {text[:200]!r} is invalid.",
                hint="Use a name such as api.example.org or *.example.org:8443.",
            )
        return cls(host.lower(), (int(port),) if port else _DEFAULT_PORTS)

    def allows(self, host: str, port: int) -> bool:
        """Whether the rule allows connections to `host` on `port`."""
        if port not in self.ports:
            return False
        if self.host.startswith("*."):
            return host.endswith(self.host[1:])  # includes the dot: `*.example.org` does not allow `badexample.org`
        return host == self.host


_EMBEDDING: Final = tuple(map(ipaddress.IPv6Network, ("::ffff:0:0/96", "::/96", "64:ff9b::/96", "64:ff9b:1::/48")))
"""IPv6 networks whose addresses end with an IPv4 address."""

Address = ipaddress.IPv4Address | ipaddress.IPv6Address


def is_public(text: str) -> bool:
    """Whether an address and every IPv4 address embedded in it are public."""
    # Embedded addresses are checked too, because a gateway translates `64:ff9b::7f00:1` to 127.0.0.1.
    address = ipaddress.ip_address(text.partition("%")[0])
    embedded = _find_embedded(address)
    if address.is_reserved and not embedded:
        return False
    return all(
        candidate.is_global and not (candidate.is_multicast or candidate.is_unspecified)
        for candidate in (address, *embedded)
    )


def _find_embedded(address: Address) -> list[Address]:
    """Return the IPv4 addresses that are embedded in an IPv6 address."""
    if isinstance(address, ipaddress.IPv4Address):
        return []
    addresses: list[Address] = []
    if any(address in network for network in _EMBEDDING):
        addresses.append(ipaddress.IPv4Address(int(address) & 0xFFFFFFFF))
    if address.sixtofour is not None:
        addresses.append(address.sixtofour)
    if address.teredo is not None:
        addresses += address.teredo
    return addresses
