"""File operations of the workspace tools: confined to the folder, bounded in size and time."""

from __future__ import annotations

import errno
import fnmatch
import io
import os
import time
from collections.abc import Generator, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from importlib import import_module
from pathlib import Path
from typing import Any, BinaryIO, Final

from bough.agents.workspace.tree import EntryKind, WorkspaceTree
from bough.errors import BoughError, Conflict, InvalidInput, LimitExceeded, NotFound, Unavailable
from bough.execution.base import USUAL_GUARDS, Guards

MAX_READ_BYTES = 256 << 10
MAX_WRITE_BYTES = 4 << 20
MAX_ENTRIES = 20_000
MAX_LISTED = 500
MAX_FOUND = 200
MAX_SEARCHED_BYTES = 64 << 20
LIST_SECONDS = 2.0
SEARCH_SECONDS = 5.0
SKIPPED_FOLDERS = frozenset({".git", ".venv", "node_modules", "__pycache__"})

_INSIDE: Final = "/work"
"""The name of the workspace in the sandbox, which absolute links in it start with."""


@dataclass(frozen=True)
class WorkspaceFiles:
    """Reads and writes below `root` and nowhere else, by paths relative to it. All methods block.

    Attributes:
        guards: The names that must not be written.
    """

    root: Path
    guards: Guards = USUAL_GUARDS

    def read(self, path: str, *, start_line: int = 1, max_lines: int = 2000, start_byte: int = 0) -> str:
        """Return lines of a text file, at most 256 KiB, with a note how to read the following ones.

        Args:
            start_byte: Offset in the first line, to read lines that are longer than an answer.

        Raises:
            NotFound: There is no such file.
            InvalidInput: It is outside the workspace, a folder, not a regular file, or not text.
        """
        start_line, start_byte = max(start_line, 1), max(start_byte, 0)
        with _translate_errors(path), self._tree.open(self._name(path)) as file:
            if b"\0" in file.read(8192):
                raise InvalidInput(f"{path} is not a text file", hint="use a script that understands its format")
            size = os.fstat(file.fileno()).st_size
            offset = _find_line(file, start_line)
            if offset is None or (offset == size and start_line > 1):
                return f"[the file has fewer than {start_line} lines]"
            file.seek(0)
            # Lines of a large file are not counted: that would read all of it for each part.
            total = f" of {len(file.readlines())}" if size <= MAX_WRITE_BYTES else ""
            file.seek(offset + start_byte)
            block = file.read(MAX_READ_BYTES)
            bytes_left = size - offset - start_byte
            return _describe_part(block, bytes_left, start_line, max(max_lines, 1), start_byte, total)

    def write(self, path: str, content: str) -> str:
        """Write a text file, create its folders, and return a confirmation.

        Raises:
            InvalidInput: It is outside the workspace or guarded.
            LimitExceeded: The content is longer than 4 MiB.
        """
        data = content.encode("utf-8", "replace")
        if len(data) > MAX_WRITE_BYTES:
            raise LimitExceeded(f"{len(data)} bytes are too large for one file", hint=f"at most {MAX_WRITE_BYTES}")
        with _translate_errors(path):
            self._tree.replace(self._name(path), data)
        return f"wrote {len(data)} bytes to {path}"

    def edit(self, path: str, old: str, new: str) -> str:
        """Replace the only occurrence of `old` in a file, and return a confirmation.

        Raises:
            NotFound: There is no such file, or `old` is not in it.
            Conflict: `old` occurs more than once.
        """
        with _translate_errors(path):
            # Bytes that are not UTF-8 pass through unchanged: an edit must not damage the rest of the file.
            text = self._tree.read(self._name(path)).decode("utf-8", "surrogateescape")
        count = text.count(old) if old else 0
        if count == 0:
            raise NotFound(f"the text to replace is not in {path}", hint="read the file and copy the text exactly")
        if count > 1:
            raise Conflict(f"the text to replace occurs {count} times in {path}", hint="include more lines around it")
        with _translate_errors(path):
            self._tree.replace(self._name(path), text.replace(old, new).encode("utf-8", "surrogateescape"))
        return f"replaced 1 place in {path}"

    def list(self, path: str = ".", *, pattern: str = "*") -> list[str]:
        """Return at most 500 files below a folder whose path or name matches a glob, sorted.

        An unreadable folder is a separate line. If the walk stopped after 20,000 names or 2 seconds, the last line
        reports it.
        """
        walk = _BoundedWalk(self, path, LIST_SECONDS)
        names = sorted(name for name in walk if _matches(name, pattern))
        more = [f"[{len(names) - MAX_LISTED} more]"] if len(names) > MAX_LISTED else []
        return [*names[:MAX_LISTED], *more, *walk.notes]

    def search(self, expression: str, path: str = ".", *, pattern: str = "*") -> list[str]:
        """Return at most 200 lines that match a regular expression (RE2), as `file:line: text` of 300 characters.

        The search stops after 20,000 names, 64 MiB or 5 seconds; the last line reports which.

        Raises:
            InvalidInput: The expression is invalid.
        """
        re2: Any = import_module("re2")  # it has no type stubs
        options = re2.Options()
        options.log_errors = False
        try:
            pattern_re = re2.compile(expression, options)
        except re2.error as error:
            raise InvalidInput(f"invalid regular expression {expression!r}: {error}", hint="use RE2 syntax") from error
        matches: list[str] = []
        walk = _BoundedWalk(self, path, SEARCH_SECONDS)
        read = 0
        for name in sorted(
            path_name for path_name in walk if _matches(path_name, pattern) and path_name not in walk.links
        ):
            if walk.is_late() or read > MAX_SEARCHED_BYTES:
                bound = f"{SEARCH_SECONDS:g} seconds" if walk.is_late() else f"{MAX_SEARCHED_BYTES >> 20} MiB"
                return [*matches, *walk.notes, f"[stopped at {name} after {bound}]"]
            data = self._read_text(name)
            read += len(data)
            lines = data.decode("utf-8", "replace").splitlines()
            matches += [f"{name}:{n}: {line[:300]}" for n, line in enumerate(lines, 1) if pattern_re.search(line)]
            if len(matches) >= MAX_FOUND:
                return [*matches[:MAX_FOUND], "[more matches omitted]"]
        return [*matches, *walk.notes]

    def walk(self, path: str) -> Iterator[tuple[str, EntryKind]]:
        """Yield (name, kind) as `WorkspaceTree.walk`; a path to a file yields that file."""
        with _translate_errors(path):
            try:
                yield from self._tree.walk(self._name(path), skip=SKIPPED_FOLDERS)
            except NotADirectoryError:
                self._tree.open(self._name(path)).close()
                yield "/".join(self._tree.resolve(self._name(path))), "file"

    def _read_text(self, name: str) -> bytes:
        """Return the content of a file; empty if it is not text, too large, or missing."""
        try:
            data = self._tree.read(f"{_INSIDE}/{name}")
        except OSError:
            return b""
        return b"" if b"\0" in data[:8192] else data

    @property
    def _tree(self) -> WorkspaceTree:
        folder = os.fspath(self.root.resolve())
        return WorkspaceTree(folder, _INSIDE, max_file_bytes=MAX_WRITE_BYTES, guards=self.guards)

    def _name(self, path: str) -> str:
        """Return the path's name in the sandbox. Links in it are checked when the file is opened."""
        if "\0" in path or len(path) > 4096:
            raise InvalidInput(f"invalid path {path[:80]!r}")
        root = os.fspath(self.root.resolve())
        # Models repeat absolute paths of the host, which messages and error texts contain.
        if path == root or path.startswith(root + os.sep):
            path = path[len(root) :].lstrip("/")
        return path if path.startswith("/") else f"{_INSIDE}/{path or '.'}"


@dataclass
class _BoundedWalk:
    """Iterates the names of files below a folder, within a bound of names and seconds.

    Attributes:
        notes: One line for each omission.
        links: Names that are links.
    """

    files: WorkspaceFiles
    path: str
    seconds: float
    notes: list[str] = field(default_factory=list[str])
    links: set[str] = field(default_factory=set[str])

    def __post_init__(self) -> None:
        self._end = time.monotonic() + self.seconds

    def __iter__(self) -> Iterator[str]:
        for number, (name, kind) in enumerate(self.files.walk(self.path)):
            if number >= MAX_ENTRIES or self.is_late():
                bound = f"{MAX_ENTRIES} names" if number >= MAX_ENTRIES else f"{self.seconds:g} seconds"
                self.notes.append(f"[stopped after {bound}: name a folder further down]")
                return
            if kind == "unreadable":
                self.notes.append(f"[unreadable: {name}]")
                continue
            if kind == "link":
                self.links.add(name)
            yield name

    def is_late(self) -> bool:
        """Whether the time limit has passed."""
        return time.monotonic() > self._end


def _find_line(file: BinaryIO, line: int) -> int | None:
    """Return the offset of a line; None if the file has fewer lines. O(bytes before it)."""
    file.seek(0)
    offset, number = 0, 1
    while number < line:
        block = file.read(1 << 20)
        if not block:
            return None
        count = block.count(b"\n")
        if number + count < line:
            offset, number = offset + len(block), number + count
            continue
        place = 0
        for _ in range(line - number):
            place = block.index(b"\n", place) + 1
        return offset + place
    return offset


def _describe_part(block: bytes, bytes_left: int, start_line: int, max_lines: int, start_byte: int, total: str) -> str:
    """Return the whole lines at the start of `block`, or a part of the first one, and how to read on.

    Args:
        bytes_left: Number of bytes from the start of the block to the end of the file.
    """
    lines = io.BytesIO(block).readlines()
    if lines and not lines[-1].endswith(b"\n") and len(block) < bytes_left:
        *lines, cut = lines
        if not lines:
            piece = _cut_whole_characters(cut)
            next_byte = start_byte + len(piece)
            text = piece.decode("utf-8", "replace")
            return f"{text}\n[read on with start_line={start_line}, start_byte={next_byte}]"
    part = lines[:max_lines]
    text = b"".join(part).decode("utf-8", "replace")
    if sum(map(len, part)) >= bytes_left:
        return text
    last = start_line + len(part) - 1
    return f"{text}\n[lines {start_line}-{last}{total}; read on with start_line={last + 1}]"


def _cut_whole_characters(data: bytes) -> bytes:
    """Return `data` without an incomplete UTF-8 character at its end."""
    for back in range(1, min(4, len(data)) + 1):
        if data[-back] & 0xC0 != 0x80:
            width = 1 if data[-back] < 0xC0 else 2 + (data[-back] >= 0xE0) + (data[-back] >= 0xF0)
            return data[:-back] if width > back else data
    return data


def _matches(path: str, pattern: str) -> bool:
    return fnmatch.fnmatch(path, pattern) or fnmatch.fnmatch(os.path.basename(path), pattern)


@contextmanager
def _translate_errors(path: str) -> Generator[None]:
    """Convert the system's errors to errors that a model can act on."""
    try:
        yield
    except (OSError, ValueError) as error:
        raise _translate_error(error, path) from error


def _translate_error(error: OSError | ValueError, path: str) -> BoughError:
    if isinstance(error, ValueError):
        return InvalidInput(f"invalid path {path[:200]!r}")
    match error:
        case FileNotFoundError() | NotADirectoryError():
            return NotFound(f"no such file: {path}", hint="list_files shows the existing files")
        case IsADirectoryError():
            return InvalidInput(f"{path} is a folder", hint="list_files shows its content")
        # The texts are those of `WorkspaceTree`, which raises both with the same number as the system.
        case PermissionError(strerror=str(reason)) if reason.startswith("Outside"):
            return InvalidInput(f"{path} is outside the workspace", hint="use paths relative to the workspace")
        case PermissionError(strerror=str(reason)) if reason.startswith("Guarded"):
            return InvalidInput(f"{path} is protected", hint="it decides what may happen later; ask the user")
        case OSError(errno=errno.EFBIG):
            return LimitExceeded(f"{path} is too large to edit", hint=f"at most {MAX_WRITE_BYTES} bytes")
        case OSError(errno=errno.EINVAL | errno.ENXIO):
            return InvalidInput(f"{path} is not a regular file", hint="list_files shows the files")
        case OSError(errno=errno.EACCES | errno.EPERM | errno.ELOOP | errno.ENAMETOOLONG | errno.EROFS):
            return InvalidInput(f"{path} cannot be used: {error.strerror}")
        case _:
            return Unavailable(f"{path} cannot be used now: {error.strerror}", hint="check the disk")
