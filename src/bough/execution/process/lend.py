"""Lending a workspace that belongs to root to the uid that its runs have, and giving it back.

A change of owner moves the ctime of a file, so a folder is lent before its first run, stays lent, and is given back
when its executor is closed or has not used it for a while. Only owners change, groups stay, except those of files that
runs made. What cannot be lent safely stays root's: a file with a second name elsewhere, a setuid file, a device, a
guarded name, another file system.
"""

from __future__ import annotations

import fcntl
import os
import secrets
import stat
import threading
from collections.abc import Callable
from contextlib import suppress
from typing import Final

from bough.tree import ignore_error, read_unsorted, walk

IDLE_SECONDS: Final = 600.0


class Lender:
    """The workspaces that one executor has on loan to its runs. Used from many threads at once; all methods block.

    Args:
        notes: Returns a folder in which each loan is noted by a link, for the janitor.
        idle_seconds: How long after its last use a workspace is given back.
    """

    def __init__(self, notes: Callable[[], str], *, idle_seconds: float = IDLE_SECONDS) -> None:
        self._notes = notes
        self._idle_seconds = idle_seconds
        self._lock = threading.Lock()
        self._lent: dict[str, _Loan] = {}

    def lend(self, workspace: str, uid: int, *, guarded: frozenset[str]) -> Callable[[], None]:
        """Give what is root's below `workspace` to `uid`, unless it is lent already.

        Returns a function to be called when the run is over; a second call of it does nothing. Cost: O(entries) at the
        first call, a lookup later.

        Args:
            guarded: Names that stay root's, at any depth.

        Raises:
            OSError: This process may not change owners, or the folder is gone.
        """
        with self._lock:
            loan = self._lent.get(workspace)
            if loan is None:
                loan = self._lent[workspace] = _Loan(workspace, uid, self._notes())
                try:
                    loan.change_owners(_lend(uid), skip=guarded)
                except BaseException:
                    self._end(loan)
                    raise
            use = object()
            loan.uses.add(use)
            loan.stop_timer()
        return lambda: self._release(loan, use)

    def _release(self, loan: _Loan, use: object) -> None:
        with self._lock:
            loan.uses.discard(use)
            if not loan.uses and self._lent.get(loan.workspace) is loan:
                loan.start_timer(self._idle_seconds, self._give_back_idle)

    def close(self) -> None:
        """Give everything back; twice is fine."""
        with self._lock:
            for loan in list(self._lent.values()):
                self._end(loan)

    def _give_back_idle(self, loan: _Loan) -> None:
        with self._lock:
            if not loan.uses and self._lent.get(loan.workspace) is loan:
                self._end(loan)

    def _end(self, loan: _Loan) -> None:
        del self._lent[loan.workspace]
        loan.close()


class _Loan:
    """One workspace that is lent: its descriptor, which carries the lock, and how many runs use it."""

    def __init__(self, workspace: str, uid: int, notes: str) -> None:
        self.workspace = workspace
        self.uses: set[object] = set()
        self._uid = uid
        self._timer: threading.Timer | None = None
        self._fd = os.open(workspace, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        fcntl.flock(self._fd, fcntl.LOCK_SH)
        # Noted before any owner is changed, so that a process that is shot in the middle is cleaned up after.
        self._note = os.path.join(notes, f"lent-{uid}-{os.fstat(self._fd).st_gid}-{secrets.token_hex(4)}")
        os.symlink(workspace, self._note)

    def change_owners(self, change: Callable[[int, str, os.stat_result], None], *, skip: frozenset[str]) -> None:
        """Call `change` for the folder and for everything in it on the same file system."""
        state = os.fstat(self._fd)
        entries = walk(
            self._fd,
            enter=lambda entry: entry.state.st_dev == state.st_dev,
            skip=lambda folder, name: name in skip,
            read=read_unsorted,
            on_error=ignore_error,
        )
        for entry in entries:
            if entry.state.st_dev == state.st_dev:
                with suppress(FileNotFoundError):
                    change(entry.folder_fd, entry.name, entry.state)
        change(self._fd, ".", state)

    def start_timer(self, seconds: float, then: Callable[[_Loan], None]) -> None:
        """Call `then` after a while, unless stopped."""
        self._timer = threading.Timer(seconds, then, [self])
        self._timer.daemon = True
        self._timer.start()

    def stop_timer(self) -> None:
        """Forget what was to be called."""
        if self._timer is not None:
            self._timer.cancel()

    def close(self) -> None:
        """Give the workspace back, unless another process lends it still: that one gives it back then."""
        self.stop_timer()
        try:
            fcntl.flock(self._fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            self.change_owners(_give_back(self._uid, os.fstat(self._fd).st_gid), skip=frozenset())
        except OSError:
            # Held by another process, or the folder is gone. What stays is repaired by whoever lends it next.
            pass
        finally:
            os.unlink(self._note)
            os.close(self._fd)


def _lend(uid: int) -> Callable[[int, str, os.stat_result], None]:
    def change(parent_fd: int, name: str, entry: os.stat_result) -> None:
        if entry.st_uid == 0 and _is_safe(entry):
            _chown_checked(parent_fd, name, uid)

    return change


def _chown_checked(parent_fd: int, name: str, uid: int) -> None:
    """Give away what a descriptor holds, looked at once more: a run may put another file in the place of a name."""
    fd = os.open(name, os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=parent_fd)
    try:
        state = os.fstat(fd)
        if state.st_uid == 0 and _is_safe(state):
            os.chown(f"/proc/self/fd/{fd}", uid, -1)
    finally:
        os.close(fd)


def _is_safe(entry: os.stat_result) -> bool:
    if stat.S_ISDIR(entry.st_mode):
        return True
    is_device = stat.S_ISCHR(entry.st_mode) or stat.S_ISBLK(entry.st_mode)
    return not is_device and entry.st_nlink == 1 and not entry.st_mode & (stat.S_ISUID | stat.S_ISGID)


def _give_back(uid: int, gid: int) -> Callable[[int, str, os.stat_result], None]:
    def change(parent_fd: int, name: str, entry: os.stat_result) -> None:
        if entry.st_uid == uid or entry.st_gid == uid:
            owner = 0 if entry.st_uid == uid else -1
            group = gid if entry.st_gid == uid else -1
            os.chown(name, owner, group, dir_fd=parent_fd, follow_symlinks=False)

    return change
