"""The folders of one run: a private one for the code, and `/work`, either new or a person's folder."""

from __future__ import annotations

import os
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, replace

from bough.errors import Conflict, ExecutorError
from bough.execution.process.files import Collected, FolderSnapshot, collect, snapshot, write_file
from bough.execution.process.guarded import NOTHING_GUARDED, GuardedEntries, GuardedEntry, find_guarded, set_aside
from bough.execution.process.identity import Identity
from bough.execution.process.run_directory import RunDirectory
from bough.execution.request import WORK, Plan
from bough.tree import identify, open_descriptor


@dataclass(frozen=True)
class Workspace:
    """The folders on the host that one run reads and writes.

    Attributes:
        folder: The run's private folder, which `remove` deletes.
        run_directory: The folder of the executor, which contains `folder`.
        work: The folder that is mounted as `/work`.
        code: The folder that is mounted as `CODE_FOLDER`.
        tmp: A private folder for sandboxes that cannot create a new `/tmp`; exists after `make_private`.
        exchange: A folder to pass files to a sandbox that inherits no descriptors; exists after `make_private`.
        identity: The user of the run.
        earlier_files: The state of the files of `/work` before the run.
        guarded: The entries of a person's workspace that must not change.
        release: Ends the use of a lent workspace; None if it is not lent.
    """

    folder: str
    run_directory: RunDirectory
    work: str
    code: str
    tmp: str
    exchange: str
    identity: Identity
    earlier_files: FolderSnapshot
    guarded: GuardedEntries = NOTHING_GUARDED
    release: Callable[[], None] | None = None

    @classmethod
    def prepare(
        cls, plan: Plan, run_directory: RunDirectory, identity: Identity, *, folder: str | None = None
    ) -> Workspace:
        """Create the folders, write code and input files, and record the state of the workspace. Blocks.

        Args:
            folder: An empty folder to use instead of a new one in `run_directory`.

        Raises:
            ExecutorError: The disk is full, or the workspace is not writable.
        """
        release: Callable[[], None] | None = None
        try:
            folder = run_directory.new_folder() if folder is None else folder
        except OSError as error:
            raise _make_preparation_error(error) from error
        try:
            # Before the state of the files is recorded: a change of owner changes the ctime, and files would differ.
            if identity.lent and identity.uid is not None and plan.workspace is not None:
                release = run_directory.lender.lend(plan.workspace, identity.uid, guarded=plan.request.guards.names)
            return replace(cls._prepare(plan, run_directory, folder, identity), release=release)
        except BaseException as error:
            if release is not None:
                release()
            run_directory.remove(folder)
            if isinstance(error, OSError):
                raise _make_preparation_error(error) from error
            raise

    @classmethod
    def _prepare(cls, plan: Plan, run_directory: RunDirectory, folder: str, identity: Identity) -> Workspace:
        """Create the folders in `folder`, and write code and input files."""
        paths = {name: os.path.join(folder, name) for name in ("work", "code", "tmp", "exchange")}
        _make_folder(paths["work"], 0o700, identity)
        _make_folder(paths["code"], 0o700, identity)
        if plan.code_file is not None:
            _write_code(paths["code"], *plan.code_file, identity=identity)
        work = plan.workspace or paths["work"]
        earlier_files, guarded = _write_inputs(work, plan, identity)
        return cls(
            folder=folder,
            run_directory=run_directory,
            work=work,
            code=paths["code"],
            tmp=paths["tmp"],
            exchange=paths["exchange"],
            identity=identity,
            earlier_files=earlier_files,
            guarded=guarded,
        )

    def list_guarded(self, plan: Plan) -> tuple[GuardedEntry, ...]:
        """Return the guarded entries to mount read-only below `/work`, outer ones first.

        Entries that are covered by a mount of the request are omitted.
        """
        targets = [mount.target for mount in plan.mounts]
        return tuple(
            entry
            for entry in self.guarded.mountable
            if not any(f"{WORK}/{entry.path}/".startswith(f"{target}/") for target in targets)
        )

    def list_mounted(self, plan: Plan) -> list[tuple[str, int, int, bool]]:
        """Return (path inside, device, inode, whether it is read-only) of each file or folder mounted from the host."""
        writable = {WORK, *(mount.target for mount in plan.mounts if mount.writable)}
        targets = [(target, *identity, target not in writable) for target, identity in plan.file_identities.items()]
        return [*targets, *((f"{WORK}/{entry.path}", *entry.identity, True) for entry in self.list_guarded(plan))]

    @property
    def empty(self) -> str:
        """An empty folder; exists after `make_private`."""
        return os.path.join(self.folder, "empty")

    def make_private(self) -> None:
        """Create `tmp`, `exchange` and `empty` for the sandboxes that need them. Blocks.

        Raises:
            ExecutorError: The disk is full.
        """
        try:
            _make_folder(self.tmp, 0o700, self.identity)
            _make_folder(self.exchange, 0o700, self.identity)
            _make_folder(self.empty, 0o755)
        except OSError as error:
            raise _make_preparation_error(error) from error

    def prepare_next(self, plan: Plan) -> Workspace:
        """Write code and input files of the session's next run into these folders; return the workspace of that run.

        Raises:
            ExecutorError: The disk is full, or the workspace is not writable.
        """
        try:
            if plan.code_file is not None:
                with suppress(FileNotFoundError):
                    os.unlink(os.path.join(self.code, plan.code_file[0]))
                _write_code(self.code, *plan.code_file, identity=self.identity)
            earlier_files, guarded = _write_inputs(self.work, plan, self.identity)
            return replace(self, earlier_files=earlier_files, guarded=guarded)
        except OSError as error:
            raise _make_preparation_error(error) from error

    def collect(self, plan: Plan) -> Collected:
        """Return the new and changed files in `/work`, and rename new guarded files. Blocks; O(entries).

        Must be called after all processes of the run have ended.

        Raises:
            ExecutorError: The workspace does not exist any more.
        """
        request = plan.request
        try:
            with open_descriptor(self.work) as root:
                collected = collect(
                    root,
                    self.earlier_files,
                    limits=request.limits,
                    globs=request.output_globs,
                    guards=request.guards,
                    reports_guarded=plan.workspace is None,
                )
                if plan.workspace is None:
                    return collected
                renamed_entries = set_aside(root, request.guards, self.guarded)
                changed = True if renamed_entries else collected.changed
                return replace(collected, skipped=(*collected.skipped, *renamed_entries), changed=changed)
        except OSError as error:
            raise ExecutorError(
                f"The workspace was removed during the run: {error.strerror}.", hint="Remove it only after the run."
            ) from error

    def remove(self) -> None:
        """Remove the run's private folder, but not a person's workspace. Idempotent. Blocks."""
        if self.release is not None:
            self.release()
        if os.path.isdir(self.folder):
            self.run_directory.remove(self.folder)


def make_stale_workspace_error() -> Conflict:
    """Return the error for a workspace in which a file was replaced between the check and the start of a run."""
    return Conflict("The workspace changed while it was being mounted; nothing was run.", hint="Run it again.")


def _make_folder(path: str, mode: int, identity: Identity | None = None) -> None:
    """Create a folder with exactly `mode`, owned by the run's user if one is set."""
    os.mkdir(path, 0o700)
    if mode != 0o700:
        os.chmod(path, mode)
    if identity is not None and identity.owner is not None:
        os.chown(path, *identity.owner)


def _make_preparation_error(error: OSError) -> ExecutorError:
    """Return the error for folders that could not be created or written."""
    return ExecutorError(
        f"The workspace could not be prepared: {error.strerror}.",
        hint="Free space in the temporary folder, or set TMPDIR; check that the workspace is writable.",
    )


def _write_code(folder: str, name: str, content: bytes, *, identity: Identity) -> None:
    """Write the code to a file that only the run's user can read: other users can enter the folder of a run."""
    fd = os.open(os.path.join(folder, name), os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    with open(fd, "wb") as target:
        if identity.owner is not None:
            os.fchown(fd, *identity.owner)
        target.write(content)


def _write_inputs(work: str, plan: Plan, identity: Identity) -> tuple[FolderSnapshot, GuardedEntries]:
    """Write the input files into `work`; return the state of its files, and its guarded entries.

    In a new workspace, the working folder is created too.

    Raises:
        Conflict: The folder was replaced after the request was checked.
        PermissionDenied: The folder has more guarded entries than can be mounted read-only.
    """
    with open_descriptor(work) as root:
        root_identity = identify(os.fstat(root))
        if plan.file_identities.get(WORK, root_identity) != root_identity:
            raise make_stale_workspace_error()
        for file in plan.request.input_files:
            write_file(root, file, owner=identity.owner)
        depth = plan.request.limits.output_depth
        if plan.workspace is None:
            _make_working_folder(root, plan, identity)
            return snapshot(root, max_depth=depth), NOTHING_GUARDED
        guards = plan.request.guards
        return snapshot(root, max_depth=depth, guards=guards), find_guarded(root, guards)


def _make_working_folder(root: int, plan: Plan, identity: Identity) -> None:
    """Create the folders of the plan's `cwd` below `root`, owned by the run's user."""
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
