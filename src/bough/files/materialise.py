"""Write a tree into a new folder; check its names for file systems that ignore case."""

from __future__ import annotations

import os
import secrets
import unicodedata
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Final

from bough.errors import Conflict, InvalidInput, PermissionDenied, Unavailable
from bough.files.objects import EXECUTABLE_MODE, FOLDER_MODE, LINK_MODE, Objects
from bough.files.trees import read_tree_id, show_path
from bough.tree import FOLDER, list_names, open_descriptor

NEVER: Final = ".git"
"""No tree contains a file, folder or link of this name, so that nobody can install git hooks by writing a tree."""

_CREATE: Final = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC


def materialise(objects: Objects, tree: str, folder: Path) -> int:
    """Write a tree into an empty folder, which is created if it does not exist. O(bytes).

    Uses no temporary names and does not synchronise the disk. If it fails, the caller removes the folder.

    Returns:
        The number of files and links.

    Raises:
        InvalidInput: The folder is not empty.
        Conflict: Two paths are the same on this file system, which ignores case; `details["paths"]` has them.
        NotFound: A part of the tree is not in this store.
        CorruptLog: A part of the tree is damaged.
        Unavailable: The folder cannot be written.
    """
    oid = read_tree_id(tree)
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with open_descriptor(folder) as fd:
            # Only an empty folder: nothing is overwritten, and the caller can remove all of it after a failure.
            if list_names(fd, 1):
                raise InvalidInput(f"{folder} is not empty", hint="name a folder that does not exist")
            if folds_names(fd):
                check_folding([os.fsdecode(path) for path, _ in objects.walk(oid)], set())
            return _write_below(objects, oid, fd)
    except OSError as error:
        raise Unavailable(f"{folder} cannot be written: {error.strerror}", hint="free some space") from error


def _write_below(objects: Objects, tree: bytes, fd: int) -> int:
    count = 0
    for name, entry in objects.read_tree(tree).items():
        if entry.mode == FOLDER_MODE:
            os.mkdir(name, 0o777, dir_fd=fd)
            inner = os.open(name, FOLDER, dir_fd=fd)
            try:
                count += _write_below(objects, entry.oid, inner)
            finally:
                os.close(inner)
            continue
        count += 1
        data = objects.get(entry.oid)
        if entry.mode == LINK_MODE:
            os.symlink(data, name, dir_fd=fd)
        else:
            with open(
                os.open(name, _CREATE, 0o777 if entry.mode == EXECUTABLE_MODE else 0o666, dir_fd=fd), "wb", buffering=0
            ) as file:
                file.write(data)
    return count


def folds_names(fd: int) -> bool:
    """Whether the file system of a folder ignores case. Creates a file and looks for it in upper case."""
    name = f".bough-{secrets.token_hex(16)}-a"
    os.close(os.open(name, _CREATE, 0o600, dir_fd=fd))
    try:
        os.stat(name.upper(), dir_fd=fd, follow_symlinks=False)
    except FileNotFoundError:
        return False
    finally:
        os.unlink(name, dir_fd=fd)
    return True


def check_folding(
    paths: Sequence[str], written: set[str], is_guarded: Callable[[str], bool] = lambda path: False
) -> None:
    """Check the paths of a tree for a folder whose file system ignores case.

    Args:
        paths: All paths of the tree.
        written: The paths to be written; only these are checked with `is_guarded`.
        is_guarded: Returns whether a path must not be written.

    Raises:
        Conflict: Two paths are the same on this file system; `details["paths"]` has them.
        PermissionDenied: On this file system, a path is one that must not be written, such as `.GIT`.
    """
    names: dict[str, str] = {}
    for path in paths:
        folded = unicodedata.normalize("NFC", path).casefold()
        parts = folded.split("/")
        if NEVER in parts or (path in written and is_guarded(folded)):
            raise PermissionDenied(f"{show_path(path)} must not be written here", hint="restore other paths")
        prefix, original = "", path.split("/")
        for depth, part in enumerate(parts):
            prefix = f"{prefix}/{part}"
            name = "/".join(original[: depth + 1])
            other = names.setdefault(prefix, name)
            if other != name:
                raise Conflict(
                    f"{show_path(other)} and {show_path(name)} have one name here",
                    hint="restore into a folder whose file system tells them apart",
                    details={"paths": [show_path(other), show_path(name)]},
                )
