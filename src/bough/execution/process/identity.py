"""Choose the user of a run.

- If the caller is an ordinary user: this user, in a user namespace that maps no other user.
- If the caller is root and the workspace is new: an unprivileged uid that no other run and no person has.
- If the caller is root and the workspace belongs to a person: that person's uid.
- If the caller is root and the workspace belongs to root: the uid to which the folder is lent; see `lend`.

It is never uid 0, because even without capabilities uid 0 owns the kernel settings below `/proc/sys`.
"""

from __future__ import annotations

import hashlib
import os
import secrets
from dataclasses import dataclass

from bough.errors import SandboxUnavailable

_FIRST_UID = 0x70000000
"""The start of a range of uids that is not assigned to people, packages or containers."""

_UID_COUNT = 1 << 26


@dataclass(frozen=True)
class Identity:
    """The user of a run.

    Attributes:
        uid: The uid to change to; None to keep the caller's.
        gid: The gid to change to; None to keep the caller's.
        lent: Whether a workspace that belongs to root is lent to this uid while runs use it.
    """

    uid: int | None = None
    gid: int | None = None
    lent: bool = False

    @property
    def owner(self) -> tuple[int, int] | None:
        """The uid and gid to set as the owner of new files; None to leave the owner unchanged."""
        return None if self.uid is None or self.gid is None else (self.uid, self.gid)


def identity_for(workspace: str | None) -> Identity:
    """Return the identity of a run in `workspace`, or in a new workspace if it is None.

    Raises:
        SandboxUnavailable: The caller is root, the folder belongs to root, and no other uid is available.
    """
    if os.geteuid() != 0:
        return Identity()
    if workspace is None:
        uid = choose_free_uid()
        return Identity(uid, uid)
    state = os.stat(workspace)
    # A folder that already belongs to this uid is lent again, so that it is returned: its lender may have been killed.
    uid = choose_loan_uid(state, workspace)
    if state.st_uid in (0, uid):
        return Identity(uid, uid, lent=True)
    return Identity(state.st_uid, state.st_gid)


def choose_free_uid() -> int:
    """Return a random unused uid, from a reserved range or from the highest that this user namespace maps."""
    first_uid, count = _find_free_uids()
    return first_uid + secrets.randbelow(count)


def choose_loan_uid(state: os.stat_result, workspace: str) -> int:
    """Return the uid to which a folder of root is lent. It is always the same uid for the same folder.

    Args:
        state: The folder's `stat` result.
        workspace: The folder's path, for the error message.

    Raises:
        SandboxUnavailable: This user namespace maps uid 0 only.
    """
    first_uid, count = _find_free_uids()
    if first_uid == 0:
        raise SandboxUnavailable(
            f"{workspace} belongs to root, and this machine has no other user that can run a script.",
            hint=f"Give the folder to an ordinary user: chown -R nobody {workspace}",
        )
    digest = hashlib.blake2b(b"%d:%d" % (state.st_dev, state.st_ino), digest_size=8).digest()
    return first_uid + int.from_bytes(digest) % count


def _find_free_uids() -> tuple[int, int]:
    """Return the first unused uid, and the number of consecutive unused uids."""
    highest_uid = _find_highest_uid()
    if highest_uid >= _FIRST_UID + _UID_COUNT:
        return _FIRST_UID, _UID_COUNT
    count = max(1, min(4096, highest_uid // 8))
    return max(0, highest_uid - count + 1), count


def _find_highest_uid() -> int:
    """Return the highest uid of this user namespace; the usual maximum if that is unknown."""
    try:
        with open("/proc/self/uid_map") as source:
            rows = [[int(number) for number in line.split()] for line in source]
    except OSError:
        return 65533
    return max((first + count - 1 for first, _, count in rows), default=65533)
