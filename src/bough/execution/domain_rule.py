"""Entries of the list of domains that a run may reach, and where it finds the proxy that knows them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from bough.errors import InvalidInput

PORT: Final = 3128
"""Where the proxy listens inside."""

_DEFAULT_PORTS: Final = (80, 443)


@dataclass(frozen=True)
class DomainRule:
    """One entry of the allow-list: a host, or with `*.` every host below it, and the ports."""

    host: str
    ports: tuple[int, ...] = _DEFAULT_PORTS

    @classmethod
    def parse(cls, text: str) -> DomainRule:
        """Read `example.org`, `*.example.org` or `example.org:8080`.

        Raises:
            InvalidInput: It is none of these.
        """
        host, _, port = text.partition(":")
        name = host.removeprefix("*.")
        plain = bool(name) and all(part and part.replace("-", "a").isalnum() for part in name.split("."))
        if not plain or not name.isascii() or (port and not (port.isdigit() and 0 < int(port) < 65536)):
            raise InvalidInput(
                f"The network domain {text[:200]!r} is refused.",
                hint="For example api.example.org or *.example.org:8443.",
            )
        return cls(host.lower(), (int(port),) if port else _DEFAULT_PORTS)

    def allows(self, host: str, port: int) -> bool:
        """Whether `host` may be reached on `port`."""
        if port not in self.ports:
            return False
        if self.host.startswith("*."):
            return host.endswith(self.host[1:])
        return host == self.host
