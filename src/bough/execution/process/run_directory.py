"""The folder and the control groups of an executor's runs, removed even if this process is killed."""

from __future__ import annotations

import logging
import os
import tempfile
import threading
import time
import weakref
from collections.abc import Sequence
from itertools import count
from queue import SimpleQueue
from typing import Final

from bough import tree
from bough.execution.base import ExecutionLimits
from bough.execution.process.cgroup import Group, Hierarchy, find_usable_hierarchy
from bough.execution.process.lend import Lender

_log = logging.getLogger("bough.execution")

REMOVE_SECONDS: Final = 0.2
"""How long a run waits for the removal of its folder, which then continues in the background."""

CLOSE_SECONDS: Final = 10.0
"""How long `close` waits for removals; the janitor removes the rest, even after this process has exited."""


class RunDirectory:
    """The folder of an executor in the system's temporary folder, created at the first use.

    It contains a folder for each run. If possible, it creates control groups too. Thread-safe. All methods block.

    Args:
        groups: Whether to limit runs by control groups where possible.

    Attributes:
        lender: Lends root's workspaces to the users of runs.
    """

    def __init__(self, *, groups: bool = True) -> None:
        self._groups = groups
        self._lock = threading.Lock()
        self._numbers = count()
        self._path: str | None = None
        self._hierarchy: Hierarchy | None = None
        self._janitor: Janitor | None = None
        self._remover: Remover | None = None
        self.lender = Lender(self._ensure_folder)

    @property
    def path(self) -> str:
        """The path of the folder, which is created if it does not exist."""
        return self._ensure_folder()

    @property
    def is_created(self) -> bool:
        """Whether the folder was created."""
        return self._path is not None

    def new_folder(self) -> str:
        """Return the path of a new, empty folder, which other users may enter but not list."""
        path = os.path.join(self._ensure_folder(), str(next(self._numbers)))
        os.mkdir(path)
        os.chmod(path, 0o711)  # noqa: S103 - the run's user enters it
        return path

    def new_group(self, limits: ExecutionLimits) -> Group | None:
        """Return a new control group with `limits`; None if this process cannot create one."""
        name = f"{os.path.basename(self._ensure_folder())}-{next(self._numbers)}"
        return None if self._hierarchy is None else self._hierarchy.make_group(name, limits)

    def remove(self, folder: str) -> None:
        """Remove the folder of a run. A large one is renamed, and another thread removes it."""
        deadline = time.monotonic() + REMOVE_SECONDS
        if tree.remove(folder, should_stop=lambda: time.monotonic() > deadline):
            return
        with self._lock:
            if self._path is not None:
                queued_folder = os.path.join(self._path, f"left-{next(self._numbers)}")
                os.rename(folder, queued_folder)
                if self._remover is None:
                    self._remover = Remover()
                self._remover.add(queued_folder)
                return
        tree.remove(folder)  # the run directory is being closed

    def close(self) -> None:
        """Return lent workspaces and remove the folder; the next use creates a new one. Idempotent."""
        self.lender.close()
        with self._lock:
            path, self._path = self._path, None
            janitor, self._janitor = self._janitor, None
            remover, self._remover = self._remover, None
        deadline = time.monotonic() + CLOSE_SECONDS
        if remover is not None:
            remover.close(deadline)
        is_removed = path is None or tree.remove(path, should_stop=lambda: time.monotonic() > deadline)
        if janitor is not None:
            janitor.close(wait=is_removed)

    def _ensure_folder(self) -> str:
        with self._lock:
            if self._path is None:
                self._path = self._create()
            return self._path

    def _create(self) -> str:
        """Create the folder, find the hierarchy for control groups and start the janitor; return the folder's path."""
        self._hierarchy = find_usable_hierarchy() if self._groups else None
        path = tempfile.mkdtemp(prefix="bough-run-")
        os.chmod(path, 0o711)  # noqa: S103 - the users of runs enter it
        parents = () if self._hierarchy is None else tuple(dict.fromkeys(self._hierarchy.parents.values()))
        self._janitor = Janitor(path, token=os.path.basename(path), group_parents=parents)
        return path


class Remover:
    """Removes folders one after another in a separate thread."""

    def __init__(self) -> None:
        self._folders: SimpleQueue[str | None] = SimpleQueue()
        self._is_stopped = False
        # A daemon: this process may exit before the removals are complete, because the janitor removes the rest.
        self._thread = threading.Thread(target=self._remove_queued, name="bough-remover", daemon=True)
        self._thread.start()

    def add(self, folder: str) -> None:
        """Queue a folder for removal; it must not be used any more."""
        self._folders.put(folder)

    def close(self, deadline: float) -> None:
        """Wait until all queued folders are removed or the deadline has passed, then stop the thread. Blocks.

        Args:
            deadline: A time of the monotonic clock.
        """
        self._folders.put(None)
        self._thread.join(max(0.0, deadline - time.monotonic()))
        self._is_stopped = True
        self._thread.join()

    def _remove_queued(self) -> None:
        while (folder := self._folders.get()) is not None:
            try:
                tree.remove(folder, should_stop=lambda: self._is_stopped)
            except OSError as error:
                _log.warning("cannot remove the folder of a run; it is removed when the executor is closed: %s", error)


_SCRIPT = """
trap '' INT TERM HUP QUIT
read -r _
folder=$1 token=$2
shift 2
for round in 1 2 3 4 5 6 7 8 9 10; do
    remaining=
    for parent do
        for group in "$parent/$token"-*; do
            [ -d "$group" ] || continue
            while read -r pid; do kill -9 "$pid"; done < "$group/cgroup.procs"
            rmdir "$group" || remaining=1
        done
    done
    [ "$remaining" ] || break
    sleep 0.1
done
[ -d "$folder" ] || exit 0
for loan in "$folder"/lent-*; do
    [ -d "$loan/." ] || continue
    name=${loan##*/lent-}
    uid=${name%%-*} rest=${name#*-}
    gid=${rest%%-*}
    exec 9<"$loan"
    # The owner's lock may outlive its pipe for a moment: descriptors of a killed process are closed one by one.
    if command -v flock >/dev/null; then
        for round in 1 2 3 4 5 6 7 8 9 10; do
            locked=
            flock -n 9 && locked=1 && break
            sleep 0.1
        done
        [ "$locked" ] || continue
    fi
    find "$loan/" -xdev -gid "$uid" -exec chgrp -h "$gid" {} +
    find "$loan/" -xdev -uid "$uid" -exec chown -h 0 {} +
done
chmod -R u+rwX "$folder"
rm -rf "$folder"
"""


class Janitor:
    """A shell that waits until this process has exited, and then cleans up for it.

    It kills the processes in the control groups, returns lent workspaces to root and removes the folder. It takes about
    a megabyte, and three milliseconds to start.

    Args:
        folder: The folder to remove.
        token: The prefix of the control groups' names.
        group_parents: The parent folders of the control groups.
    """

    def __init__(self, folder: str, *, token: str, group_parents: Sequence[str]) -> None:
        reading, writing = os.pipe()
        null = os.open(os.devnull, os.O_RDWR)
        try:
            self._pid: int | None = os.posix_spawn(
                "/bin/sh",
                ["sh", "-c", _SCRIPT, "bough-janitor", folder, token, *group_parents],
                {"PATH": "/usr/bin:/bin"},
                file_actions=[(os.POSIX_SPAWN_DUP2, reading, 0), *((os.POSIX_SPAWN_DUP2, null, n) for n in (1, 2))],
                setsid=True,
            )
        except BaseException:
            os.close(writing)
            raise
        finally:
            os.close(reading)
            os.close(null)
        self._release = weakref.finalize(self, os.close, writing)

    def close(self, *, wait: bool = True) -> None:
        """Let the shell clean up and exit. Idempotent. Blocks, for a few milliseconds if little is left.

        Args:
            wait: Whether to wait until the shell has exited.
        """
        self._release()
        pid, self._pid = self._pid, None
        if pid is not None and wait:
            os.waitpid(pid, 0)
        elif pid is not None:  # a thread reaps the shell
            threading.Thread(target=os.waitpid, args=(pid, 0), name="bough-janitor", daemon=True).start()
