"""Walking a tree of any depth and size that others change meanwhile, with two open descriptors."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator
from dataclasses import dataclass
from types import TracebackType
from typing import Self

from bough.tree import FOLDER


@dataclass
class TreeLevel:
    """A folder that the cursor is in or below: which one it is, and the folders in it that are still to be entered."""

    name: str
    identity: tuple[int, int]
    todo: list[str]


class TreeCursor:
    """An iterator of (descriptor of its folder, name, state) of everything below a folder, outer ones first.

    It never follows a link, and never leaves the tree or its file system. A folder that is moved meanwhile, or that
    cannot be read, is left out; `complete` tells then. Memory is O(names in the folders above the place where it is).

    Args:
        root_fd: A descriptor of the folder; the cursor keeps one of its own.
        skip: Names that are neither returned nor entered.
    """

    def __init__(self, root_fd: int, *, skip: frozenset[str] = frozenset()) -> None:
        self.complete = True
        self._skip = skip
        self._fd = os.open(".", FOLDER, dir_fd=root_fd)
        self._levels = [TreeLevel("", identity_of(os.fstat(self._fd)), [])]

    @property
    def folder(self) -> tuple[str, ...]:
        """The names that lead to the folder that is looked at. O(depth)."""
        return tuple(level.name for level in self._levels[1:])

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        os.close(self._fd)

    def __iter__(self) -> Iterator[tuple[int, str, os.stat_result]]:
        levels = self._levels
        yield from self._look(levels[-1])
        while levels:
            if not levels[-1].todo:
                levels.pop()
                if levels and not self._leave(levels[-1]):
                    self.complete = False
                    return
                continue
            name = levels[-1].todo.pop()
            try:
                inner = self._open(name)
            except OSError:
                self.complete = False
                continue
            os.close(self._fd)
            self._fd = inner
            levels.append(TreeLevel(name, identity_of(os.fstat(inner)), []))
            yield from self._look(levels[-1])

    def _open(self, name: str) -> int:
        """Open a folder of the one that is looked at."""
        return os.open(name, FOLDER, dir_fd=self._fd)

    def _look(self, level: TreeLevel) -> Iterator[tuple[int, str, os.stat_result]]:
        """Yield what is in the folder, and note its folders."""
        try:
            names = [name for name in os.listdir(self._fd) if name not in self._skip]
        except OSError:
            self.complete = False
            return
        for name in names:
            try:
                state = os.stat(name, dir_fd=self._fd, follow_symlinks=False)
            except OSError:
                continue
            if stat.S_ISDIR(state.st_mode) and state.st_dev == level.identity[0]:
                level.todo.append(name)
            yield self._fd, name, state

    def _leave(self, above: TreeLevel) -> bool:
        """Go up; return whether that led to where the cursor came from."""
        try:
            fd = os.open("..", FOLDER, dir_fd=self._fd)
        except OSError:
            return False
        os.close(self._fd)
        self._fd = fd
        return identity_of(os.fstat(fd)) == above.identity


def identity_of(state: os.stat_result) -> tuple[int, int]:
    """Return what tells a file or folder from every other one: device and number."""
    return state.st_dev, state.st_ino
