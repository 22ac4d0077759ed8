"""Who asks: the tenant, the key, what the key may do."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal, TypeAlias

from bough.errors import PermissionDenied

LOCAL = "local"
"""The tenant of the command line: the conversations without an owner."""

Role: TypeAlias = Literal["read", "write", "admin"]
ROLES: tuple[Role, ...] = ("read", "write", "admin")
SCOPES = frozenset({
    "conversations", "approve", "ask", "files", "commands", "tasks", "skills", "agents", "evals", "webhooks", "mcp",
    "a2a",
})  # fmt: skip
"""What a key may be limited to; a key without a list has all."""


@dataclass(frozen=True, kw_only=True)
class Caller:
    """Who asks.

    Attributes:
        key: Id of the key; None where the server has none and everybody on this machine is trusted.
        name: Name of the key, for the record of who did it.
    """

    tenant: str = LOCAL
    key: str | None = None
    name: str = "local"
    role: Role = "admin"
    scopes: frozenset[str] = field(default=SCOPES)

    @property
    def owner(self) -> str | None:
        """What the rows of its tenant have in their column `owner`."""
        return None if self.tenant == LOCAL else self.tenant

    @property
    def is_operator(self) -> bool:
        """Whether it is an admin of the tenant of the command line: whose machine this is."""
        return self.tenant == LOCAL and self.role == "admin"

    def may(self, role: Role) -> bool:
        """Whether its role is `role` or one that contains it."""
        return ROLES.index(self.role) >= ROLES.index(role)

    def require(self, role: Role, *scopes: str) -> None:
        """Check the right.

        Raises:
            PermissionDenied: The key's role is too small, or it lacks a scope.
        """
        if not self.may(role):
            raise PermissionDenied(f"this needs a key with the role {role}", hint=f"the key's role is {self.role}")
        missing = [scope for scope in scopes if scope not in self.scopes]
        if missing:
            raise PermissionDenied(f"this needs a key with the scope {missing[0]}", hint="make one with that scope")
