"""The caller of a request: its tenant, its key, and the key's rights."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal, TypeAlias

from bough.errors import PermissionDenied

LOCAL = "local"
"""The tenant of the command line; its conversations have no owner."""

Role: TypeAlias = Literal["read", "write", "admin"]
ROLES: tuple[Role, ...] = ("read", "write", "admin")
SCOPES = frozenset({
    "conversations", "approve", "ask", "files", "commands", "tasks", "skills", "agents", "evals", "webhooks", "mcp",
    "a2a",
})  # fmt: skip
"""The scopes to which a key can be limited; a key without a list has all of them."""


@dataclass(frozen=True, kw_only=True)
class Caller:
    """The caller of a request.

    Attributes:
        key: Id of the key; None if the server has no keys and trusts everyone on this machine.
        name: Name of the key, recorded as the author of a change.
        session: Id of the session of a browser, which was opened with the key; None for other callers.
    """

    tenant: str = LOCAL
    key: str | None = None
    name: str = "local"
    role: Role = "admin"
    scopes: frozenset[str] = field(default=SCOPES)
    session: str | None = None

    @property
    def owner(self) -> str | None:
        """The value of the column `owner` in the tenant's rows; None for the tenant `local`."""
        return None if self.tenant == LOCAL else self.tenant

    @property
    def is_operator(self) -> bool:
        """Whether the caller is the operator of this machine: an admin of the command line's tenant."""
        return self.tenant == LOCAL and self.role == "admin"

    def may(self, role: Role) -> bool:
        """Whether the caller's role is `role` or a higher one."""
        return ROLES.index(self.role) >= ROLES.index(role)

    def require(self, role: Role, *scopes: str) -> None:
        """Check that the caller has a role and scopes.

        Raises:
            PermissionDenied: The key's role is too low, or it lacks a scope.
        """
        if not self.may(role):
            raise PermissionDenied(f"this needs a key with the role {role}", hint=f"the key's role is {self.role}")
        missing = [scope for scope in scopes if scope not in self.scopes]
        if missing:
            raise PermissionDenied(f"this needs a key with the scope {missing[0]}", hint="create a key with that scope")
