"""As whom a run happens: which user the kernel sees, and whether a user namespace is what takes the rights away.

- An ordinary user: a user namespace that maps this one user and no other.
- Root, with a fresh workspace: an unprivileged uid that no other run and no person has.
- Root, with a workspace that belongs to a person: that person's uid.
- Root, with a workspace that belongs to root: uid 0 without a capability, in a user namespace that maps it alone.
"""

from __future__ import annotations

import os
import secrets
from dataclasses import dataclass

_FIRST_UID = 0x70000000
"""The beginning of a range that neither people, packages nor containers are given."""

_UID_COUNT = 1 << 26


@dataclass(frozen=True)
class Identity:
    """The uid and gid to change to, or None where a user namespace does it."""

    uid: int | None = None
    gid: int | None = None

    @property
    def owner(self) -> tuple[int, int] | None:
        """Whom new files are given to; None: whoever makes them."""
        return None if self.uid is None or self.gid is None else (self.uid, self.gid)


def uncounted(identity: Identity) -> bool:
    """Whether the kernel counts no processes for it by resource limits, as it does not for root."""
    return os.geteuid() == 0 and identity.uid is None


def identity_for(workspace: str | None) -> Identity:
    """Return as whom a run in `workspace` (None: a fresh one) happens."""
    if os.geteuid() != 0:
        return Identity()
    if workspace is None:
        uid = free_uid()
        return Identity(uid, uid)
    state = os.stat(workspace)
    return Identity() if state.st_uid == 0 else Identity(state.st_uid, state.st_gid)


def free_uid() -> int:
    """Return a uid that nobody has: from a range of its own, or from the top of what this user namespace maps."""
    top = _highest_mapped_uid()
    if top >= _FIRST_UID + _UID_COUNT:
        return _FIRST_UID + secrets.randbelow(_UID_COUNT)
    return max(1, top - secrets.randbelow(max(1, min(4096, top // 8))))


def _highest_mapped_uid() -> int:
    try:
        with open("/proc/self/uid_map") as source:
            rows = [[int(number) for number in line.split()] for line in source]
    except OSError:
        return 65533
    return max((first + count - 1 for first, _, count in rows), default=65533)
