"""The folders of one run: a private place for the code, and `/work`, fresh or a person's own."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace

from bough.errors import Conflict, ExecutorError
from bough.execution.process.files import Collected, Print, collect, snapshot, write_file
from bough.execution.process.guarded import NOTHING_GUARDED, GuardedEntries, GuardedEntry, find_guarded, set_aside
from bough.execution.process.identity import Identity
from bough.execution.process.run_directory import RunDirectory
from bough.execution.request import WORK, Plan
from bough.tree import identity_of, open_descriptor


@dataclass(frozen=True)
class Workspace:
    """What one run reads and writes on the host.

    Attributes:
        folder: The run's own folder, removed afterwards.
        run_directory: Removes it.
        work: What is shown as `/work`.
        code: What is shown as the folder of the code.
        tmp: A private folder for sandboxes that cannot make a fresh `/tmp`; there once `make_private` was called.
        release: Says that a workspace that is lent is not in use any more; None: it is not lent.
        exchange: A folder for what has to reach the other side of a sandbox that lets no descriptor through; as `tmp`.
        guarded: What of a person's workspace stays as it is.
    """

    folder: str
    run_directory: RunDirectory
    work: str
    code: str
    tmp: str
    exchange: str
    identity: Identity
    before: Mapping[str, Print]
    guarded: GuardedEntries = NOTHING_GUARDED
    release: Callable[[], None] | None = None

    @classmethod
    def prepare(
        cls, plan: Plan, run_directory: RunDirectory, identity: Identity, *, folder: str | None = None
    ) -> Workspace:
        """Make the folders, put code and input files in place, and remember what is there. Blocks.

        Args:
            folder: An empty folder to use instead of a new one of the run_directory.

        Raises:
            ExecutorError: The disk is full, or the workspace cannot be written to.
        """
        release: Callable[[], None] | None = None
        try:
            folder = run_directory.new_folder() if folder is None else folder
        except OSError as error:
            raise _make_unprepared_error(error) from error
        try:
            # Before the files are looked at: a change of owner moves the ctime by which changes are told.
            if identity.lent and identity.uid is not None and plan.workspace is not None:
                release = run_directory.lender.lend(plan.workspace, identity.uid, guarded=plan.request.guards.names)
            return replace(cls._prepare(plan, run_directory, folder, identity), release=release)
        except BaseException as error:
            if release is not None:
                release()
            run_directory.remove(folder)
            if isinstance(error, OSError):
                raise _make_unprepared_error(error) from error
            raise

    @classmethod
    def _prepare(cls, plan: Plan, run_directory: RunDirectory, folder: str, identity: Identity) -> Workspace:
        paths = {name: os.path.join(folder, name) for name in ("work", "code", "tmp", "exchange")}
        _make_folder(paths["work"], 0o700, identity)
        _make_folder(paths["code"], 0o700, identity)
        if plan.code_file is not None:
            _write_code(paths["code"], *plan.code_file, identity=identity)
        work = plan.workspace or paths["work"]
        before, guarded = _fill(work, plan, identity)
        return cls(
            folder, run_directory, work, paths["code"], paths["tmp"], paths["exchange"], identity, before, guarded
        )

    def guards(self, plan: Plan) -> tuple[GuardedEntry, ...]:
        """Return what must be shown read-only below `/work`, outer ones first; mounts of the request go before."""
        targets = [mount.target for mount in plan.mounts]
        return tuple(
            entry
            for entry in self.guarded.mountable
            if not any(f"{WORK}/{entry.path}/".startswith(f"{target}/") for target in targets)
        )

    def list_shown(self, plan: Plan) -> list[tuple[str, int, int, bool]]:
        """Return (path inside, device, number, whether it is read-only) of everything of the host that is shown."""
        writable = {WORK, *(mount.target for mount in plan.mounts if mount.writable)}
        entries = [(target, *identity, target not in writable) for target, identity in plan.shown.items()]
        return [*entries, *((f"{WORK}/{entry.path}", *entry.identity, True) for entry in self.guards(plan))]

    @property
    def empty(self) -> str:
        """A folder with nothing in it; there once `make_private` was called."""
        return os.path.join(self.folder, "empty")

    def make_private(self) -> None:
        """Make `tmp`, `exchange` and `empty`, for the sandboxes that need them. Blocks.

        Raises:
            ExecutorError: The disk is full.
        """
        try:
            _make_folder(self.tmp, 0o700, self.identity)
            _make_folder(self.exchange, 0o700, self.identity)
            _make_folder(self.empty, 0o755)
        except OSError as error:
            raise _make_unprepared_error(error) from error

    def again(self, plan: Plan) -> Workspace:
        """Put code and input files of another run of the same session in place; return the workspace of that run."""
        try:
            if plan.code_file is not None:
                with suppress(FileNotFoundError):
                    os.unlink(os.path.join(self.code, plan.code_file[0]))
                _write_code(self.code, *plan.code_file, identity=self.identity)
            before, guarded = _fill(self.work, plan, self.identity)
            return replace(self, before=before, guarded=guarded)
        except OSError as error:
            raise _make_unprepared_error(error) from error

    def collect(self, plan: Plan) -> Collected:
        """Return what is new or changed in `/work`, and set aside what no run may make there. Blocks; O(entries).

        Only while nothing of the run is running.

        Raises:
            ExecutorError: The folder is gone.
        """
        request = plan.request
        try:
            with open_descriptor(self.work) as root:
                collected = collect(
                    root,
                    self.before,
                    limits=request.limits,
                    globs=request.output_globs,
                    guards=request.guards,
                    tells_guarded=plan.workspace is None,
                )
                if plan.workspace is None:
                    return collected
                return replace(collected, skipped=(*collected.skipped, *set_aside(root, request.guards, self.guarded)))
        except OSError as error:
            raise ExecutorError(
                f"The workspace went away during the run: {error.strerror}.", hint="Leave it until the run is over."
            ) from error

    def remove(self) -> None:
        """Remove the run's own folder; a person's workspace stays. Twice is fine. Blocks."""
        if self.release is not None:
            self.release()
        if os.path.isdir(self.folder):
            self.run_directory.remove(self.folder)


def stale_workspace_error() -> Conflict:
    """Return the error for a workspace in which names changed between the check of a request and its start."""
    return Conflict("The workspace changed while it was shown; nothing was run.", hint="Run it again.")


def _make_folder(path: str, mode: int, identity: Identity | None = None) -> None:
    """Make a folder with exactly `mode`, of the run's own user where one is given."""
    os.mkdir(path, 0o700)
    if mode != 0o700:
        os.chmod(path, mode)
    if identity is not None and identity.owner is not None:
        os.chown(path, *identity.owner)


def _make_unprepared_error(error: OSError) -> ExecutorError:
    return ExecutorError(
        f"The workspace could not be prepared: {error.strerror}.",
        hint="Free space in the temporary folder, or set TMPDIR; check who may write to the workspace.",
    )


def _write_code(folder: str, name: str, content: bytes, *, identity: Identity) -> None:
    """Write the code for the run's user alone: other users of this machine can come to the folder of every run."""
    fd = os.open(os.path.join(folder, name), os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    with open(fd, "wb") as target:
        if identity.owner is not None:
            os.fchown(fd, *identity.owner)
        target.write(content)


def _fill(work: str, plan: Plan, identity: Identity) -> tuple[dict[str, Print], GuardedEntries]:
    """Put the input files and the working folder into `work`; return what it then holds, and what of it is guarded.

    Raises:
        Conflict: Another folder is there than the one that was asked for.
        PermissionDenied: More of it is guarded than can be shown read-only.
    """
    with open_descriptor(work) as root:
        if plan.shown.get(WORK, identity_of(os.fstat(root))) != identity_of(os.fstat(root)):
            raise stale_workspace_error()
        for file in plan.request.input_files:
            write_file(root, file, owner=identity.owner)
        depth = plan.request.limits.output_depth
        if plan.workspace is None:
            _make_working_folder(root, plan, identity)
            return snapshot(root, max_depth=depth), NOTHING_GUARDED
        guards = plan.request.guards
        return snapshot(root, max_depth=depth, guards=guards), find_guarded(root, guards)


def _make_working_folder(root: int, plan: Plan, identity: Identity) -> None:
    fd = os.dup(root)
    for part in plan.cwd.split("/")[2:]:
        try:
            os.mkdir(part, 0o755, dir_fd=fd)
            if identity.owner is not None:
                os.chown(part, *identity.owner, dir_fd=fd, follow_symlinks=False)
        except FileExistsError:
            pass
        inner = os.open(part, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=fd)
        os.close(fd)
        fd = inner
    os.close(fd)
