"""The files of a fork: the source's own, or its own copy of them.

A copy shows the files as they are when the fork is made, not as they were at the cut. Nothing is ever hard-linked.
"""

from __future__ import annotations

import asyncio
import logging
import os
import re
import shutil
import stat
import tempfile
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Literal, TypeAlias
from uuid import UUID

from bough import git
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
_FICLONE = 0x40049409
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


async def remove_workspace(made: Path) -> None:
    """Remove a folder that was made for a fork. Nothing happens where there is none."""
    await finish(asyncio.to_thread(_remove, made))


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
    named = (place / ".git").read_text("utf-8").removeprefix("gitdir: ").strip()
    back = Path(named) / "gitdir"
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
            made = making or place
            try:
                path = await finish(asyncio.to_thread(make, source, made))
            except asyncio.CancelledError:
                await remove_workspace(made)  # it may have been copied to its end by now, and no row will name it
                raise
            except OSError as error:
                raise Unavailable(
                    f"the workspace could not be copied to {place}: {error.strerror}",
                    hint="free some space, or fork with workspace=shared",
                ) from error
            return ForkedWorkspace(place / path.relative_to(made), policy, made)
        case "overlay":  # pyright: ignore[reportUnnecessaryComparison] - asked for all the same; docs/decisions says why
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
        _copy_folder(source, temporary, source.resolve())
        temporary.rename(place)
    except BaseException:
        shutil.rmtree(temporary, ignore_errors=True)
        raise
    return place


def _measure(source: Path) -> None:
    size = count = 0
    for folder, _, files in os.walk(source):
        count += len(files)
        size += sum(os.lstat(os.path.join(folder, name)).st_size for name in files)
        if count > MAX_COPIED_FILES or size > MAX_COPIED_BYTES:
            raise LimitExceeded(
                f"the workspace is too big to be copied: more than {count} files or {size} bytes",
                hint="fork with workspace=worktree or shared",
            )


def _copy_folder(source: Path, target: Path, root: Path) -> None:
    for entry in os.scandir(source):
        to = target / entry.name
        if entry.is_symlink():
            os.symlink(_retarget(entry.path, root), to)
        elif entry.is_dir(follow_symlinks=False):
            to.mkdir()
            _copy_folder(Path(entry.path), to, root)
        elif entry.is_file(follow_symlinks=False) and entry.name != ".git":  # a `.git` file would share an index
            _copy_file(entry.path, to)
    shutil.copystat(source, target, follow_symlinks=False)


def _retarget(link: str, root: Path) -> str:
    """Return where a copied link points: one that names a place in the workspace absolutely is made relative."""
    aim = os.readlink(link)
    if not os.path.isabs(aim) or not Path(os.path.normpath(aim)).is_relative_to(root):
        return aim
    return os.path.relpath(aim, os.path.realpath(os.path.dirname(link)))


def _copy_file(source: str, target: Path) -> None:
    """Copy a file, sharing its blocks until one of the two changes where the file system can."""
    fd = os.open(source, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK)
    with open(fd, "rb") as reader:
        if not stat.S_ISREG(os.fstat(fd).st_mode):
            return
        with target.open("xb") as writer:
            if not _cloned(reader.fileno(), writer.fileno()):
                shutil.copyfileobj(reader, writer, 1 << 20)
    shutil.copystat(source, target, follow_symlinks=False)


def _cloned(source: int, target: int) -> bool:
    try:
        from fcntl import ioctl

        ioctl(target, _FICLONE, source)
    except (ImportError, OSError):
        return False
    return True


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
        # Git looks into a submodule by another git, which follows the settings of that repository.
        listed = _git(top, "ls-files", "--stage", "-z", env=index).split("\0")
        submodules = [entry.partition("\t")[2] for entry in listed if entry.startswith("160000 ")]
        paths = "".join(f"{path}\0" for path in submodules)
        _git(top, "update-index", "--force-remove", "-z", "--stdin", env=index, stdin=paths)
        _git(top, "add", "--all", env=index)
        tree = _git(top, "write-tree", env=index).strip()
    _git(top, "worktree", "add", "--detach", str(place), head)
    try:
        _git(place, "restore", f"--source={tree}", "--worktree", "--", ".")
    except BaseException:
        _remove(place)
        raise
    return place / prefix


def _remove(made: Path) -> None:
    """Remove a worktree or a copy; a worktree whose `.git` leads elsewhere by now is only a folder."""
    name_owner(made).unlink(missing_ok=True)
    if (made / ".git").is_file():
        try:
            _git(made, "worktree", "remove", "--force", "--force", str(made))
        except InvalidInput as error:
            _log.warning("%s is removed as a folder: %s", made, error.message)
        else:
            return
    shutil.rmtree(made, ignore_errors=True)


def _git(folder: Path, *arguments: str, env: dict[str, str] | None = None, stdin: str = "") -> str:
    """Run git so that it starts nothing of the repository, and return what it says.

    Raises:
        InvalidInput: It refuses.
        Unavailable: There is no git.
    """
    done = git.run(folder, *arguments, env=env, stdin=stdin)
    if done.code:
        reason = " ".join(done.stderr.split())[:300]
        raise InvalidInput(f"no worktree can be made of {folder}: {reason}", hint="fork with workspace=copy")
    return done.stdout
