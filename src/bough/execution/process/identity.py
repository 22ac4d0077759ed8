"""Choosing the user of a run, and whether a user namespace removes its privileges.

- An ordinary user: a user namespace that maps this one user and no other.
- Root, with a new workspace: an unprivileged uid that no other run and no person has.
- Root, with a workspace that belongs to a person: that person's uid.
- Root, with a workspace that belongs to root: the uid that the folder is lent to; see `lend`.

Never uid 0: even without a capability it owns the kernel settings below `/proc/sys`.
"""

from __future__ import annotations

import hashlib
import os
import secrets
from dataclasses import dataclass

from bough.errors import SandboxUnavailable

_FIRST_UID = 0x70000000
"""The start of a range of uids that is assigned to neither people nor packages nor containers."""

_UID_COUNT = 1 << 26


@dataclass(frozen=True)
class Identity:
    """The uid and gid to change to, or None if a user namespace maps them.

    Attributes:
        lent: Whether a workspace that belongs to root is lent to this uid while runs use it.
    """

    uid: int | None = None
    gid: int | None = None
    lent: bool = False

    @property
    def owner(self) -> tuple[int, int] | None:
        """The owner of new files; None for the user that creates them."""
        return None if self.uid is None or self.gid is None else (self.uid, self.gid)


def identity_for(workspace: str | None) -> Identity:
    """Return the identity of a run in `workspace`; None is a new workspace.

    Raises:
        SandboxUnavailable: This process is root, the folder is root's, and no other uid is available.
    """
    if os.geteuid() != 0:
        return Identity()
    if workspace is None:
        uid = free_uid()
        return Identity(uid, uid)
    state = os.stat(workspace)
    # A folder that is lent already, by a process that was shot perhaps, is lent again, so that it is given back.
    uid = uid_for_loan(state, workspace)
    if state.st_uid in (0, uid):
        return Identity(uid, uid, lent=True)
    return Identity(state.st_uid, state.st_gid)


def free_uid() -> int:
    """Return an unused uid, from a reserved range or from the top of those that this user namespace maps."""
    first, number = _free_uids()
    return first + secrets.randbelow(number)


def uid_for_loan(state: os.stat_result, workspace: str) -> int:
    """Return the uid that a folder of root is lent to, always the same one for a folder.

    Args:
        workspace: Named in the error message.

    Raises:
        SandboxUnavailable: This user namespace maps uid 0 alone.
    """
    first, number = _free_uids()
    if first == 0:
        raise SandboxUnavailable(
            f"{workspace} belongs to root, and there is no other user here as whom a script could run.",
            hint=f"Give the folder to an ordinary user: chown -R nobody {workspace}",
        )
    digest = hashlib.blake2b(b"%d:%d" % (state.st_dev, state.st_ino), digest_size=8).digest()
    return first + int.from_bytes(digest) % number


def _free_uids() -> tuple[int, int]:
    """Return the first unused uid, and the number of unused uids from there on."""
    top = _highest_mapped_uid()
    if top >= _FIRST_UID + _UID_COUNT:
        return _FIRST_UID, _UID_COUNT
    number = max(1, min(4096, top // 8))
    return max(0, top - number + 1), number


def _highest_mapped_uid() -> int:
    try:
        with open("/proc/self/uid_map") as source:
            rows = [[int(number) for number in line.split()] for line in source]
    except OSError:
        return 65533
    return max((first + count - 1 for first, _, count in rows), default=65533)
