"""The files of a fork: the folder of its source, or a copy of that folder.

A copy first has the present files, and then gets the files at the cut. Files are never hard-linked.
"""

from __future__ import annotations

import asyncio
import logging
import os
import re
import tempfile
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Final, Literal, TypeAlias
from uuid import UUID

from bough import git, tree
from bough.cancellation import finish
from bough.conversation.fork.files import PastFiles
from bough.errors import InvalidInput, LimitExceeded, Unavailable
from bough.events.owner import owner
from bough.files import Looked

WorkspacePolicy: TypeAlias = Literal["shared", "readonly", "copy", "worktree"]
"""`shared`: the source's folder. `readonly`: the source's folder, which tools of the fork only read, while each of its
scripts gets a new folder. `copy`: a copy. `worktree`: a git worktree with the present files, without ignored ones."""

OWN_FOLDER: Final[Sequence[WorkspacePolicy]] = ("copy", "worktree")
"""The policies that make a new folder for the fork."""

NONCE_KEY = "made"
"""Key in the config of a fork's row. Its value is the nonce in the name that the folder had before the row existed."""

UNFINISHED_PREFIX = ".making-"
"""Prefix of a folder's name until the row of its fork is written. A file `<name>.owner` names the copying process."""

MAX_COPIED_BYTES = 4 << 30
MAX_COPIED_FILES = 200_000
_NONCE = re.compile("[0-9a-f]{32}")
_SUBMODULE_MODE = "160000 "
_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class ForkedWorkspace:
    """The workspace of a fork.

    Attributes:
        path: The working folder.
        policy: The policy that was applied.
        own_folder: The folder that was made for the fork and is removed with it; None if the fork shares the source's.
        looked: The files at the cut if the folder has these; None if it has the present files.
    """

    path: Path
    policy: WorkspacePolicy
    own_folder: Path | None = None
    looked: Looked | None = None

    async def remove(self) -> None:
        """Remove the folder that was made for the fork, if there is one."""
        if self.own_folder is not None:
            await remove_workspace(self.own_folder)


def make_unfinished_path(home: Path, nonce: str) -> Path:
    """Return the path of the folder into which the files of a fork are copied before its row is written."""
    return home / "workspaces" / f"{UNFINISHED_PREFIX}{nonce}"


def make_owner_path(unfinished: Path) -> Path:
    """Return the path of the file that names the process that makes a copy."""
    return unfinished.with_name(f"{unfinished.name}.owner")


async def remove_workspace(folder: Path) -> None:
    """Remove a folder that was made for a fork, if it exists."""
    await finish(asyncio.to_thread(_remove, folder))


async def finish_workspace(home: Path, cid: UUID, nonce: str) -> None:
    """Move the folder of a fork to its final name. Called by every process that reads the fork's row. Idempotent."""
    if not _NONCE.fullmatch(str(nonce)):
        return  # an imported row may have any value
    await finish(asyncio.to_thread(_move_to_final, make_unfinished_path(home, nonce), home / "workspaces" / str(cid)))


def _move_to_final(unfinished: Path, final: Path) -> None:
    with suppress(OSError):  # another process that read the row was faster, or nothing was copied
        unfinished.rename(final)
    with suppress(OSError, UnicodeDecodeError):
        _repair_worktree(unfinished, final)
    with suppress(OSError):
        make_owner_path(unfinished).unlink(missing_ok=True)


def _repair_worktree(unfinished: Path, final: Path) -> None:
    """Record the new path of a moved worktree in its repository, as `git worktree repair` does.

    That command is not used, because it would run in any repository that the folder names.
    """
    git_folder = (final / ".git").read_text("utf-8").removeprefix("gitdir: ").strip()
    gitdir_file = Path(git_folder) / "gitdir"
    old_paths = (str(unfinished / ".git"), str(unfinished.parent.resolve() / unfinished.name / ".git"))
    if gitdir_file.read_text("utf-8").strip() in old_paths:
        gitdir_file.write_text(f"{final / '.git'}\n", "utf-8")


async def fork_workspace(
    policy: WorkspacePolicy,
    source: Path,
    folder: Path,
    *,
    unfinished: Path | None = None,
    past: PastFiles | None = None,
) -> ForkedWorkspace:
    """Return the workspace of a fork. `copy` and `worktree` make a new folder, in O(files).

    Args:
        policy: Whether the fork shares the folder, or gets a copy or a worktree.
        source: The working folder of the fork's source.
        folder: The new folder.
        unfinished: The path at which the folder is made. `finish_workspace` moves it to `folder` later.
        past: The files that the new folder gets; None for the present ones.

    Raises:
        InvalidInput: The policy does not exist, or the source of a worktree is not in a git repository.
        LimitExceeded: There are too many files or bytes to copy.
        Unavailable: The files could not be copied.
    """
    match policy:
        case "shared" | "readonly":
            return ForkedWorkspace(source, policy)
        case "copy" | "worktree":
            make_folder = partial(_make_folder, _copy if policy == "copy" else _make_worktree, past)
            new_folder = unfinished or folder
            try:
                path, looked = await finish(asyncio.to_thread(make_folder, source, new_folder))
            except asyncio.CancelledError:
                await remove_workspace(new_folder)  # the copy may be complete by now, and no row will refer to it
                raise
            except OSError as error:
                raise _make_copy_error(folder, error) from error
            return ForkedWorkspace(folder / path.relative_to(new_folder), policy, new_folder, looked)
        case _:
            raise _make_policy_error(policy)


def check_workspace(policy: WorkspacePolicy, source: Path, folder: Path) -> None:
    """Make the checks that `fork_workspace` makes before it copies. For `copy`, reads the sizes of all files.

    Raises:
        See `fork_workspace`.
    """
    match policy:
        case "shared" | "readonly":
            return
        case "copy":
            try:
                _require_copyable(source, folder)
            except OSError as error:
                raise _make_copy_error(folder, error) from error
        case "worktree":
            _find_commit(source)
        case _:
            raise _make_policy_error(policy)


def _make_copy_error(folder: Path, error: OSError) -> Unavailable:
    return Unavailable(
        f"the workspace could not be copied to {folder}: {error.strerror}",
        hint="free some space, or fork with workspace=shared",
    )


def _make_policy_error(policy: str) -> InvalidInput:
    if policy == "overlay":  # people ask for it; decision 3 has the reasons against it
        return InvalidInput(
            "the files of a fork cannot be an overlay: the fork would see what its source writes later",
            hint="fork with workspace=copy, which shares blocks where the file system can, or with worktree",
        )
    return InvalidInput(f"invalid value of workspace: {policy!r}", hint="choose shared, readonly, copy or worktree")


def _make_folder(
    make_copy: Callable[[Path, Path], Path], past: PastFiles | None, source: Path, folder: Path
) -> tuple[Path, Looked | None]:
    """Call `make_copy`, and write the files at the cut into the new folder. Removes the folder if that fails."""
    try:
        path = make_copy(source, folder)
    except BaseException:
        make_owner_path(folder).unlink(missing_ok=True)
        raise
    try:
        return path, None if past is None else past.write(path)
    except BaseException:
        _remove(folder)
        raise


def _prepare(folder: Path) -> None:
    """Make the parent of a new folder, and record this process as the owner, so that an orphan can be recognized."""
    folder.parent.mkdir(parents=True, exist_ok=True)
    if folder.name.startswith(UNFINISHED_PREFIX):
        make_owner_path(folder).write_text(owner(), "utf-8")


def _copy(source: Path, folder: Path) -> Path:
    """Copy the tree under a temporary name and rename it, so that `folder` is never incomplete."""
    _require_copyable(source, folder)
    _prepare(folder)
    temporary = Path(tempfile.mkdtemp(prefix=f".{folder.name}.", dir=folder.parent))
    try:
        root = source.resolve()
        with _open_root(source) as source_fd, tree.open_descriptor(temporary) as target_fd:
            tree.copy(source_fd, target_fd, skip=_is_git_link, retarget=partial(_retarget, root))
        temporary.rename(folder)
    except BaseException:
        _remove_folder(temporary)
        raise
    return folder


def _require_copyable(source: Path, folder: Path) -> None:
    if folder.resolve().is_relative_to(source.resolve()):
        raise InvalidInput(f"{folder} is inside the workspace", hint="set BOUGH_HOME to a folder outside of it")
    _check_size(source)


def _open_root(source: Path) -> AbstractContextManager[int]:
    """Return a descriptor of a workspace. Its path may be a symbolic link."""
    return tree.open_descriptor(source, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)


def _is_git_link(entry: tree.FolderEntry) -> bool:
    """Whether an entry is a `.git` that refers to another folder. A copy of it would share that folder's index."""
    return entry.name == ".git" and not entry.is_folder


def _check_size(source: Path) -> None:
    """Refuse to copy a workspace of too many files or bytes."""
    size = count = 0
    with _open_root(source) as root_fd:
        for entry in tree.walk(root_fd):
            count += not entry.is_folder
            size += 0 if entry.is_folder else entry.state.st_size
            if count > MAX_COPIED_FILES or size > MAX_COPIED_BYTES:
                raise LimitExceeded(
                    f"the workspace is too large to copy: at least {count} files and {size} bytes",
                    hint="fork with workspace=worktree or shared",
                )


def _retarget(root: Path, path: str, target: str) -> str:
    """Return the target of a copied link. An absolute path into the workspace becomes relative."""
    if not os.path.isabs(target) or not Path(os.path.normpath(target)).is_relative_to(root):
        return target
    return os.path.relpath(target, os.path.dirname(root / path))


def _make_worktree(source: Path, folder: Path) -> Path:
    """Add a worktree at the present commit, with the present content of the source's files."""
    repository, head = _find_commit(source)
    top, prefix = repository.work_tree, os.path.relpath(os.path.realpath(source), repository.work_tree)
    _prepare(folder)
    with tempfile.TemporaryDirectory(prefix="bough-index-") as temporary:
        index = {"GIT_INDEX_FILE": f"{temporary}/index"}
        _git(top, "read-tree", head, env=index)
        index_entries = _git(top, "ls-files", "--stage", "-z", env=index).split("\0")
        submodules = [entry.partition("\t")[2] for entry in index_entries if entry.startswith(_SUBMODULE_MODE)]
        names = _git(top, "ls-files", "--cached", "--others", "--exclude-standard", "-z", env=index).split("\0")
        # Git follows links, and a running script may replace a folder by a link. So git works on a copy.
        files = Path(temporary, "files")
        files.mkdir()
        _copy_listed(top, files, [name for name in names if name and name not in submodules])
        for name in submodules:  # empty folders: git keeps the recorded commit, and does not run inside the submodule
            Path(files, name).mkdir(parents=True, exist_ok=True)
        copy = git.Repository(repository.git_dir, files)
        _git(files, "add", "--all", env=index, repository=copy)
        tree_id = _git(files, "write-tree", env=index, repository=copy).strip()
    _git(top, "worktree", "add", "--detach", str(folder), head)
    try:
        _git(folder, "restore", f"--source={tree_id}", "--worktree", "--", ".")
    except BaseException:
        _remove(folder)
        raise
    return folder / prefix


def _find_commit(source: Path) -> tuple[git.Repository, str]:
    """Return the repository of a workspace, and its present commit."""
    repository = git.find_repository(source)
    if repository is None:
        raise InvalidInput(f"{source} is not in a git repository", hint="fork with workspace=copy")
    return repository, _git(repository.work_tree, "rev-parse", "--verify", "HEAD").strip()


def _copy_listed(source: Path, target: Path, paths: Sequence[str]) -> None:
    """Copy files and links by their paths. An entry that no longer exists, or is below a link, is skipped."""
    with _open_root(source) as source_fd, tree.open_descriptor(target) as target_fd:
        for path in paths:
            *parents, name = path.split("/")
            with tree.suppress_replaced(), tree.open_beneath(source_fd, parents) as folder_fd:
                state = os.stat(name, dir_fd=folder_fd, follow_symlinks=False)
                with tree.open_beneath(target_fd, parents, enter=tree.make_folder) as new_folder_fd:
                    tree.copy_entry(tree.FolderEntry(tree.Folder(fd=folder_fd), name, state), new_folder_fd)


def _remove(folder: Path) -> None:
    """Remove a worktree or a copy. If git refuses to remove the worktree, it is removed as a plain folder."""
    make_owner_path(folder).unlink(missing_ok=True)
    if (folder / ".git").is_file():
        try:
            _git(folder, "worktree", "remove", "--force", "--force", str(folder))
        except InvalidInput as error:
            _log.warning("%s is removed as a folder: %s", folder, error.message)
        else:
            return
    _remove_folder(folder)


def _remove_folder(folder: Path) -> None:
    """Remove a folder, if it exists. If it cannot be removed, this is logged."""
    try:
        tree.remove(folder)
    except FileNotFoundError:
        return
    except OSError as error:
        _log.warning("%s cannot be removed: %s", folder, error.strerror)


def _git(
    folder: Path, *arguments: str, env: dict[str, str] | None = None, repository: git.Repository | None = None
) -> str:
    """Run git without hooks or other programs of the repository, and return its output.

    Raises:
        InvalidInput: The command fails.
        Unavailable: Git is not installed.
    """
    result = git.run(folder, *arguments, env=env, repository=repository)
    if result.code:
        reason = " ".join(result.stderr.split())[:300]
        raise InvalidInput(f"no worktree can be made of {folder}: {reason}", hint="fork with workspace=copy")
    return result.stdout
