"""The files of a fork: the source's own, or its own copy of them.

A copy shows the files as they are when the fork is made, not as they were at the cut. Nothing is ever hard-linked.
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
from typing import Literal, TypeAlias
from uuid import UUID

from bough import git, tree
from bough.cancellation import finish
from bough.errors import InvalidInput, LimitExceeded, Unavailable
from bough.events.owner import owner

WorkspacePolicy: TypeAlias = Literal["shared", "readonly", "copy", "worktree"]
"""`shared`: the source's folder. `readonly`: the same, but the fork's tools only read it, and its scripts get a fresh
folder each. `copy`: a copy. `worktree`: a git worktree with the present state of the files that git does not ignore."""

MADE = "made"
"""Key of a row's config: under which name the files of a fork were copied before the row was written."""

MAKING = ".making-"
"""What the name of a copy begins with until its row is written; a file of that name and `.owner` says who makes it."""

MAX_COPIED_BYTES = 4 << 30
MAX_COPIED_FILES = 200_000
_NONCE = re.compile("[0-9a-f]{32}")
_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class ForkedWorkspace:
    """Where a fork works.

    Attributes:
        policy: What was really done.
        made: The folder that was made for it, to be removed with it; None where it shares the source's.
    """

    path: Path
    policy: WorkspacePolicy
    made: Path | None = None

    async def remove(self) -> None:
        """Remove what was made for the fork. Nothing happens where nothing was."""
        if self.made is not None:
            await remove_workspace(self.made)


def name_making(home: Path, nonce: str) -> Path:
    """Return where the files of a fork are copied to before its row is written."""
    return home / "workspaces" / f"{MAKING}{nonce}"


def name_owner(making: Path) -> Path:
    """Return the file that says which process makes a copy."""
    return making.with_name(f"{making.name}.owner")


async def remove_workspace(folder: Path) -> None:
    """Remove a folder that was made for a fork. Nothing happens where there is none."""
    await finish(asyncio.to_thread(_remove, folder))


async def settle_workspace(home: Path, cid: UUID, nonce: str) -> None:
    """Give the files of a fork whose row is written their place. Whoever sees the row may; twice is nothing more."""
    if not _NONCE.fullmatch(str(nonce)):
        return  # a row from elsewhere may say anything
    await finish(asyncio.to_thread(_settle, name_making(home, nonce), home / "workspaces" / str(cid)))


def _settle(making: Path, place: Path) -> None:
    with suppress(OSError):  # it already exists: another one who saw the row was faster, or nothing was copied
        making.rename(place)
    with suppress(OSError, UnicodeDecodeError):
        _point_back(making, place)
    with suppress(OSError):
        name_owner(making).unlink(missing_ok=True)


def _point_back(making: Path, place: Path) -> None:
    """Tell a repository where its worktree was moved to, as `git worktree repair` does.

    That command would have to be run in the repository that the folder names; nothing is run on the word of a folder.
    """
    git_folder = (place / ".git").read_text("utf-8").removeprefix("gitdir: ").strip()
    back = Path(git_folder) / "gitdir"
    if back.read_text("utf-8").strip() in (str(making / ".git"), str(making.parent.resolve() / making.name / ".git")):
        back.write_text(f"{place / '.git'}\n", "utf-8")


async def fork_workspace(
    policy: WorkspacePolicy, source: Path, place: Path, *, making: Path | None = None
) -> ForkedWorkspace:
    """Return the workspace of a fork, made in `place` where the policy asks for one of its own. O(files) then.

    Args:
        policy: What to make.
        source: What the fork's source works in.
        place: Where the fork works.
        making: Where it is made instead, to be moved to `place` by `settle_workspace`.

    Raises:
        InvalidInput: There is no such policy, or a worktree is asked for where there is no git repository.
        LimitExceeded: There is too much to copy.
        Unavailable: It could not be copied.
    """
    match policy:
        case "shared" | "readonly":
            return ForkedWorkspace(source, policy)
        case "copy" | "worktree":
            make = partial(_make, _copy if policy == "copy" else _worktree)
            new_folder = making or place
            try:
                path = await finish(asyncio.to_thread(make, source, new_folder))
            except asyncio.CancelledError:
                await remove_workspace(new_folder)  # it may have been copied to its end by now, and no row will name it
                raise
            except OSError as error:
                raise Unavailable(
                    f"the workspace could not be copied to {place}: {error.strerror}",
                    hint="free some space, or fork with workspace=shared",
                ) from error
            return ForkedWorkspace(place / path.relative_to(new_folder), policy, new_folder)
        case "overlay":  # pyright: ignore[reportUnnecessaryComparison] - asked for all the same; decision 3 says why
            raise InvalidInput(
                "the files of a fork cannot be an overlay: what its source writes later would show through",
                hint="fork with workspace=copy, which shares blocks where the file system can, or with worktree",
            )
        case _:
            raise InvalidInput(
                f"invalid way to fork a workspace: {policy!r}", hint="shared, readonly, copy or worktree"
            )


def _make(make: Callable[[Path, Path], Path], source: Path, place: Path) -> Path:
    try:
        return make(source, place)
    except BaseException:
        name_owner(place).unlink(missing_ok=True)
        raise


def _prepare(place: Path) -> None:
    """Make the folder that a copy is put into, and say who makes the copy: a killed one leaves an orphan."""
    place.parent.mkdir(parents=True, exist_ok=True)
    if place.name.startswith(MAKING):
        name_owner(place).write_text(owner(), "utf-8")


def _copy(source: Path, place: Path) -> Path:
    """Copy the tree under another name and rename it, so that a copy is whole or not there."""
    if place.resolve().is_relative_to(source.resolve()):
        raise InvalidInput(f"{place} lies in the workspace itself", hint="set BOUGH_HOME to a folder outside of it")
    _measure(source)
    _prepare(place)
    temporary = Path(tempfile.mkdtemp(prefix=f".{place.name}.", dir=place.parent))
    try:
        root = source.resolve()
        with _open_top(source) as old, tree.open_descriptor(temporary) as new:
            tree.copy(old, new, skip=_is_foreign_index, retarget=partial(_retarget, root))
        temporary.rename(place)
    except BaseException:
        _remove_folder(temporary)
        raise
    return place


def _open_top(source: Path) -> AbstractContextManager[int]:
    """Open a workspace; a person may have given it by a link."""
    return tree.open_descriptor(source, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)


def _is_foreign_index(entry: tree.FolderEntry) -> bool:
    """Whether an entry is a `.git` that leads elsewhere: the copy would share its index."""
    return entry.name == ".git" and not entry.is_folder


def _measure(source: Path) -> None:
    size = count = 0
    with _open_top(source) as top:
        for entry in tree.walk(top):
            count += not entry.is_folder
            size += 0 if entry.is_folder else entry.state.st_size
            if count > MAX_COPIED_FILES or size > MAX_COPIED_BYTES:
                raise LimitExceeded(
                    f"the workspace is too big to be copied: more than {count} files or {size} bytes",
                    hint="fork with workspace=worktree or shared",
                )


def _retarget(root: Path, path: str, target: str) -> str:
    """Return where a copied link points: one that names a place in the workspace absolutely is made relative."""
    if not os.path.isabs(target) or not Path(os.path.normpath(target)).is_relative_to(root):
        return target
    return os.path.relpath(target, os.path.dirname(root / path))


def _worktree(source: Path, place: Path) -> Path:
    """Add a worktree at the present commit and bring the files in it to their present state."""
    repository = git.find_repository(source)
    if repository is None:
        raise InvalidInput(f"{source} is not in a git repository", hint="fork with workspace=copy")
    top, prefix = repository.work_tree, os.path.relpath(os.path.realpath(source), repository.work_tree)
    head = _git(top, "rev-parse", "--verify", "HEAD").strip()
    _prepare(place)
    with tempfile.TemporaryDirectory(prefix="bough-index-") as folder:
        index = {"GIT_INDEX_FILE": f"{folder}/index"}
        _git(top, "read-tree", head, env=index)
        listed = _git(top, "ls-files", "--stage", "-z", env=index).split("\0")
        submodules = [entry.partition("\t")[2] for entry in listed if entry.startswith("160000 ")]
        names = _git(top, "ls-files", "--cached", "--others", "--exclude-standard", "-z", env=index).split("\0")
        # Git follows paths, and a running script may swap a folder for a link, so git works on a copy.
        files = Path(folder, "files")
        files.mkdir()
        _copy_listed(top, files, [name for name in names if name and name not in submodules])
        for name in submodules:  # left empty: git keeps the recorded commit and runs no git inside the submodule
            Path(files, name).mkdir(parents=True, exist_ok=True)
        copied = git.Repository(repository.git_dir, files)
        _git(files, "add", "--all", env=index, repository=copied)
        recorded = _git(files, "write-tree", env=index, repository=copied).strip()
    _git(top, "worktree", "add", "--detach", str(place), head)
    try:
        _git(place, "restore", f"--source={recorded}", "--worktree", "--", ".")
    except BaseException:
        _remove(place)
        raise
    return place / prefix


def _copy_listed(source: Path, target: Path, names: Sequence[str]) -> None:
    """Copy files and links by their paths; one that is gone, or whose folder is a link by now, is left out."""
    with _open_top(source) as old, tree.open_descriptor(target) as new:
        for name in names:
            *parents, last = name.split("/")
            with tree.suppress_replaced(), tree.open_beneath(old, parents) as folder:
                state = os.stat(last, dir_fd=folder, follow_symlinks=False)
                with tree.open_beneath(new, parents, enter=tree.make_folder) as new_fd:
                    tree.copy_entry(tree.FolderEntry(tree.Folder(fd=folder), last, state), new_fd)


def _remove(folder: Path) -> None:
    """Remove a worktree or a copy; a worktree whose `.git` leads elsewhere by now is only a folder."""
    name_owner(folder).unlink(missing_ok=True)
    if (folder / ".git").is_file():
        try:
            _git(folder, "worktree", "remove", "--force", "--force", str(folder))
        except InvalidInput as error:
            _log.warning("%s is removed as a folder: %s", folder, error.message)
        else:
            return
    _remove_folder(folder)


def _remove_folder(folder: Path) -> None:
    """Remove a folder as far as that is possible. Nothing happens where there is none."""
    with suppress(FileNotFoundError):
        try:
            tree.remove(folder)
        except OSError as error:
            _log.warning("%s cannot be removed: %s", folder, error.strerror)


def _git(
    folder: Path, *arguments: str, env: dict[str, str] | None = None, repository: git.Repository | None = None
) -> str:
    """Run git so that it starts nothing of the repository, and return what it says.

    Raises:
        InvalidInput: It refuses.
        Unavailable: There is no git.
    """
    done = git.run(folder, *arguments, env=env, repository=repository)
    if done.code:
        reason = " ".join(done.stderr.split())[:300]
        raise InvalidInput(f"no worktree can be made of {folder}: {reason}", hint="fork with workspace=copy")
    return done.stdout
