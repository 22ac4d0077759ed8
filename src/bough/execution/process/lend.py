"""Lend a workspace: change the owner of its files from root to the uid of its runs, and back.

A change of owner changes the ctime of a file, by which changed files are detected. So a folder is lent before its first
run, and returned when its executor is closed or the folder was idle. The groups of files do not change, except that
files created by runs get root's group back.

Some files are not lent because that would be unsafe: a file with several hard links, a setuid or setgid file, a device,
a guarded name, and everything on another file system.
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
    """The workspaces that one executor has lent to its runs. Thread-safe; all methods block.

    Args:
        get_folder: Returns the folder in which the janitor finds a link for each loan.
        idle_seconds: How long after its last run a workspace is returned.
    """

    def __init__(self, get_folder: Callable[[], str], *, idle_seconds: float = IDLE_SECONDS) -> None:
        self._get_folder = get_folder
        self._idle_seconds = idle_seconds
        self._lock = threading.Lock()
        self._loans: dict[str, _Loan] = {}

    def lend(self, workspace: str, uid: int, *, guarded: frozenset[str]) -> Callable[[], None]:
        """Change the owner of root's files in `workspace` to `uid`, unless the workspace is already lent.

        Returns a function to call when the run has ended; calling it twice is allowed. Cost: O(entries) at the first
        call, O(1) while the workspace is lent.

        Args:
            guarded: Names that are not lent, at any depth.

        Raises:
            OSError: This process may not change owners, or the folder does not exist.
        """
        with self._lock:
            loan = self._loans.get(workspace)
            if loan is None:
                loan = self._loans[workspace] = _Loan(workspace, uid, self._get_folder())
                try:
                    loan.change_owners(_make_lend_function(uid), skip=guarded)
                except BaseException:
                    self._end_loan(loan)
                    raise
            run = object()
            loan.runs.add(run)
            loan.stop_timer()
        return lambda: self._release(loan, run)

    def _release(self, loan: _Loan, run: object) -> None:
        """End a run's use of a loan; after the last one, the idle time begins."""
        with self._lock:
            loan.runs.discard(run)
            if not loan.runs and self._loans.get(loan.workspace) is loan:
                loan.start_timer(self._idle_seconds, self._return_idle)

    def close(self) -> None:
        """Return every workspace to root. Calling it twice is allowed."""
        with self._lock:
            for loan in list(self._loans.values()):
                self._end_loan(loan)

    def _return_idle(self, loan: _Loan) -> None:
        with self._lock:
            # Checked again under the lock, because a run may have started after the timer has fired.
            if not loan.runs and self._loans.get(loan.workspace) is loan:
                self._end_loan(loan)

    def _end_loan(self, loan: _Loan) -> None:
        del self._loans[loan.workspace]
        loan.close()


class _Loan:
    """A lent workspace: its lock, the link for the janitor, and the runs that use it."""

    def __init__(self, workspace: str, uid: int, folder: str) -> None:
        self.workspace = workspace
        self.runs: set[object] = set()
        self._uid = uid
        self._timer: threading.Timer | None = None
        self._fd = os.open(workspace, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        # Shared with other processes that lend the folder; `close` changes owners back only with an exclusive lock.
        fcntl.flock(self._fd, fcntl.LOCK_SH)
        # Before any owner is changed, so that the janitor can restore the owners if this process is killed meanwhile.
        self._link = os.path.join(folder, f"lent-{uid}-{os.fstat(self._fd).st_gid}-{secrets.token_hex(4)}")
        os.symlink(workspace, self._link)

    def change_owners(self, change: Callable[[int, str, os.stat_result], None], *, skip: frozenset[str]) -> None:
        """Call `change` for the folder and for every entry below it on the same file system."""
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

    def start_timer(self, seconds: float, callback: Callable[[_Loan], None]) -> None:
        """Call `callback` in another thread after `seconds`, unless `stop_timer` is called before."""
        self._timer = threading.Timer(seconds, callback, [self])
        self._timer.daemon = True
        self._timer.start()

    def stop_timer(self) -> None:
        """Cancel the pending call, if any."""
        if self._timer is not None:
            self._timer.cancel()

    def close(self) -> None:
        """Return the workspace to root, unless another process still lends it; that process then returns it."""
        self.stop_timer()
        try:
            fcntl.flock(self._fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            self.change_owners(_make_return_function(self._uid, os.fstat(self._fd).st_gid), skip=frozenset())
        except OSError:
            # Another process has the lock, or the folder does not exist any more. The next loan restores the owners.
            pass
        finally:
            os.unlink(self._link)
            os.close(self._fd)


def _make_lend_function(uid: int) -> Callable[[int, str, os.stat_result], None]:
    """Return a function that changes the owner of an entry from root to `uid`, if that is safe."""

    def change(parent_fd: int, name: str, entry_stat: os.stat_result) -> None:
        if entry_stat.st_uid == 0 and _can_change_owner(entry_stat):
            _chown_checked(parent_fd, name, uid)

    return change


def _chown_checked(parent_fd: int, name: str, uid: int) -> None:
    """Change the owner through a descriptor, after a second check: a run may replace the file with that name."""
    fd = os.open(name, os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=parent_fd)
    try:
        entry_stat = os.fstat(fd)
        if entry_stat.st_uid == 0 and _can_change_owner(entry_stat):
            os.chown(f"/proc/self/fd/{fd}", uid, -1)
    finally:
        os.close(fd)


def _can_change_owner(entry_stat: os.stat_result) -> bool:
    """Whether an entry is a folder, or a file that gives its new owner no further rights."""
    if stat.S_ISDIR(entry_stat.st_mode):
        return True
    is_device = stat.S_ISCHR(entry_stat.st_mode) or stat.S_ISBLK(entry_stat.st_mode)
    return not is_device and entry_stat.st_nlink == 1 and not entry_stat.st_mode & (stat.S_ISUID | stat.S_ISGID)


def _make_return_function(uid: int, gid: int) -> Callable[[int, str, os.stat_result], None]:
    """Return a function that changes the owner of an entry from `uid` to root, and its group from `uid` to `gid`."""

    def change(parent_fd: int, name: str, entry_stat: os.stat_result) -> None:
        if entry_stat.st_uid == uid or entry_stat.st_gid == uid:
            owner = 0 if entry_stat.st_uid == uid else -1
            group = gid if entry_stat.st_gid == uid else -1
            os.chown(name, owner, group, dir_fd=parent_fd, follow_symlinks=False)

    return change
