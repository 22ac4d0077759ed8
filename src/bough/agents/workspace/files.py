"""File operations of the workspace tools, limited to the workspace folder, and in size and time."""

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
MAX_LISTED_FILES = 500
MAX_MATCHES = 200
MAX_SEARCHED_BYTES = 64 << 20
LIST_SECONDS = 2.0
SEARCH_SECONDS = 5.0
SKIPPED_FOLDERS = frozenset({".git", ".venv", "node_modules", "__pycache__"})

_SANDBOX_PATH: Final = "/work"
"""The path of the workspace in the sandbox; the targets of absolute links in the workspace start with it."""


@dataclass(frozen=True)
class WorkspaceFiles:
    """Reads and writes files below `root`, and no others, by paths relative to it. All methods block.

    Attributes:
        guards: The names that must not be written.
    """

    root: Path
    guards: Guards = USUAL_GUARDS

    def read(self, path: str, *, start_line: int = 1, max_lines: int = 2000, start_byte: int = 0) -> str:
        """Return lines of a text file, up to 256 KiB, with a note on how to read the lines after them.

        Args:
            start_byte: Offset in the first line, for lines that exceed 256 KiB.

        Raises:
            NotFound: The file does not exist.
            InvalidInput: The path is outside the workspace, a folder, not a regular file, or not a text file.
        """
        start_line, start_byte = max(start_line, 1), max(start_byte, 0)
        with _translate_errors(path), self._tree.open(self._make_sandbox_path(path)) as file:
            if b"\0" in file.read(8192):
                raise InvalidInput(f"{path} is not a text file", hint="use a script that understands its format")
            size = os.fstat(file.fileno()).st_size
            offset = _find_line(file, start_line)
            if offset is None or (offset == size and start_line > 1):
                return f"[the file has fewer than {start_line} lines]"
            file.seek(0)
            # The lines of a large file are not counted, because each call would read the whole file.
            total = f" of {len(file.readlines())}" if size <= MAX_WRITE_BYTES else ""
            file.seek(offset + start_byte)
            block = file.read(MAX_READ_BYTES)
            bytes_left = size - offset - start_byte
            return _describe_part(block, bytes_left, start_line, max(max_lines, 1), start_byte, total)

    def write(self, path: str, content: str) -> str:
        """Write a text file, create its folders, and return a confirmation.

        Raises:
            InvalidInput: The path is outside the workspace or guarded.
            LimitExceeded: The content is longer than 4 MiB.
        """
        data = content.encode("utf-8", "replace")
        if len(data) > MAX_WRITE_BYTES:
            raise LimitExceeded(f"{len(data)} bytes are too large for one file", hint=f"at most {MAX_WRITE_BYTES}")
        with _translate_errors(path):
            self._tree.replace(self._make_sandbox_path(path), data)
        return f"wrote {len(data)} bytes to {path}"

    def edit(self, path: str, old: str, new: str) -> str:
        """Replace the only occurrence of `old` in a file, and return a confirmation.

        Raises:
            NotFound: The file does not exist, or does not contain `old`.
            Conflict: `old` occurs more than once.
        """
        with _translate_errors(path):
            # `surrogateescape` preserves bytes that are not UTF-8: an edit must not change the rest of the file.
            text = self._tree.read(self._make_sandbox_path(path)).decode("utf-8", "surrogateescape")
        count = text.count(old) if old else 0
        if count == 0:
            raise NotFound(f"the text to replace is not in {path}", hint="read the file and copy the text exactly")
        if count > 1:
            raise Conflict(f"the text to replace occurs {count} times in {path}", hint="include more lines around it")
        with _translate_errors(path):
            self._tree.replace(self._make_sandbox_path(path), text.replace(old, new).encode("utf-8", "surrogateescape"))
        return f"replaced 1 place in {path}"

    def list_written(self, path: str) -> tuple[str, ...]:
        """Return the path that a write to `path` changes, with links resolved; empty if it is outside the root."""
        try:
            return ("/".join(self._tree.resolve(self._make_sandbox_path(path))),)
        except (OSError, ValueError, InvalidInput):
            return ()

    def list(self, path: str = ".", *, pattern: str = "*") -> list[str]:
        """Return at most 500 files below a folder whose path or name matches a glob, sorted.

        Each unreadable folder is reported in a line. If the walk stops after 20,000 names or 2 seconds, the last line
        says so.
        """
        walk = _LimitedWalk(self, path, LIST_SECONDS)
        names = sorted(name for name in walk if _matches(name, pattern))
        omission_note = [f"[{len(names) - MAX_LISTED_FILES} more]"] if len(names) > MAX_LISTED_FILES else []
        return [*names[:MAX_LISTED_FILES], *omission_note, *walk.notes]

    def search(self, expression: str, path: str = ".", *, pattern: str = "*") -> list[str]:
        """Return up to 200 lines that match a regular expression (RE2), as `file:line: text` with up to 300 characters.

        The search stops after 20,000 names, 64 MiB or 5 seconds; if so, the last line names the limit.

        Raises:
            InvalidInput: The expression is invalid.
        """
        re2: Any = import_module("re2")  # it has no type stubs
        options = re2.Options()
        options.log_errors = False
        try:
            compiled = re2.compile(expression, options)
        except re2.error as error:
            raise InvalidInput(f"invalid regular expression {expression!r}: {error}", hint="use RE2 syntax") from error
        matches: list[str] = []
        walk = _LimitedWalk(self, path, SEARCH_SECONDS)
        bytes_read = 0
        names = [name for name in walk if _matches(name, pattern) and name not in walk.links]
        for name in sorted(names):
            if walk.is_past_deadline() or bytes_read > MAX_SEARCHED_BYTES:
                limit = f"{SEARCH_SECONDS:g} seconds" if walk.is_past_deadline() else f"{MAX_SEARCHED_BYTES >> 20} MiB"
                return [*matches, *walk.notes, f"[stopped at {name} after {limit}]"]
            data = self._read_text(name)
            bytes_read += len(data)
            lines = data.decode("utf-8", "replace").splitlines()
            matches += [
                f"{name}:{number}: {line[:300]}" for number, line in enumerate(lines, 1) if compiled.search(line)
            ]
            if len(matches) >= MAX_MATCHES:
                return [*matches[:MAX_MATCHES], "[more matches omitted]"]
        return [*matches, *walk.notes]

    def walk(self, path: str) -> Iterator[tuple[str, EntryKind]]:
        """Yield (path, kind) like `WorkspaceTree.walk`; for the path of a file, yield that file."""
        with _translate_errors(path):
            try:
                yield from self._tree.walk(self._make_sandbox_path(path), skip=SKIPPED_FOLDERS)
            except NotADirectoryError:
                self._tree.open(self._make_sandbox_path(path)).close()
                yield "/".join(self._tree.resolve(self._make_sandbox_path(path))), "file"

    def _read_text(self, name: str) -> bytes:
        """Return the content of a file; empty if the file is not text, is too large or does not exist."""
        try:
            data = self._tree.read(f"{_SANDBOX_PATH}/{name}")
        except OSError:
            return b""
        return b"" if b"\0" in data[:8192] else data

    @property
    def _tree(self) -> WorkspaceTree:
        folder = os.fspath(self.root.resolve())
        return WorkspaceTree(folder, _SANDBOX_PATH, max_file_bytes=MAX_WRITE_BYTES, guards=self.guards)

    def _make_sandbox_path(self, path: str) -> str:
        """Return the path in the sandbox. Links in it are checked when the file is opened."""
        if "\0" in path or len(path) > 4096:
            raise InvalidInput(f"invalid path {path[:80]!r}")
        root = os.fspath(self.root.resolve())
        # Messages and error texts contain absolute paths of the host, and models use these.
        if path == root or path.startswith(root + os.sep):
            path = path[len(root) :].lstrip("/")
        return path if path.startswith("/") else f"{_SANDBOX_PATH}/{path or '.'}"


@dataclass
class _LimitedWalk:
    """Iterates over the paths of files below a folder, up to a number of names and seconds.

    Attributes:
        notes: A line for each unreadable folder, and for a limit that was reached.
        links: The paths that are links.
    """

    files: WorkspaceFiles
    path: str
    seconds: float
    notes: list[str] = field(default_factory=list[str])
    links: set[str] = field(default_factory=set[str])

    def __post_init__(self) -> None:
        self._deadline = time.monotonic() + self.seconds

    def __iter__(self) -> Iterator[str]:
        for number, (name, kind) in enumerate(self.files.walk(self.path)):
            if number >= MAX_ENTRIES or self.is_past_deadline():
                limit = f"{MAX_ENTRIES} names" if number >= MAX_ENTRIES else f"{self.seconds:g} seconds"
                self.notes.append(f"[stopped after {limit}: name a folder further down]")
                return
            if kind == "unreadable":
                self.notes.append(f"[unreadable: {name}]")
                continue
            if kind == "link":
                self.links.add(name)
            yield name

    def is_past_deadline(self) -> bool:
        """Whether the time limit has passed."""
        return time.monotonic() > self._deadline


def _find_line(file: BinaryIO, line: int) -> int | None:
    """Return the byte offset of a line; None if the file has fewer lines. O(offset)."""
    file.seek(0)
    offset = 0
    current_line = 1
    while current_line < line:
        block = file.read(1 << 20)
        if not block:
            return None
        line_feeds = block.count(b"\n")
        if current_line + line_feeds < line:
            offset += len(block)
            current_line += line_feeds
            continue
        line_start = 0
        for _ in range(line - current_line):
            line_start = block.index(b"\n", line_start) + 1
        return offset + line_start
    return offset


def _describe_part(block: bytes, bytes_left: int, start_line: int, max_lines: int, start_byte: int, total: str) -> str:
    """Return the complete lines of `block`, or a part of the first line if it is not complete, and how to read on.

    Args:
        block: Bytes of the file from `start_line` and `start_byte` on.
        bytes_left: Number of bytes from the start of the block to the end of the file.
        total: The number of lines of the file as ` of N`, or empty.
    """
    lines = io.BytesIO(block).readlines()
    if lines and not lines[-1].endswith(b"\n") and len(block) < bytes_left:
        *lines, incomplete_line = lines
        if not lines:
            piece = _cut_incomplete_character(incomplete_line)
            next_byte = start_byte + len(piece)
            text = piece.decode("utf-8", "replace")
            return f"{text}\n[read on with start_line={start_line}, start_byte={next_byte}]"
    shown_lines = lines[:max_lines]
    text = b"".join(shown_lines).decode("utf-8", "replace")
    if sum(map(len, shown_lines)) >= bytes_left:
        return text
    last_line = start_line + len(shown_lines) - 1
    return f"{text}\n[lines {start_line}-{last_line}{total}; read on with start_line={last_line + 1}]"


def _cut_incomplete_character(data: bytes) -> bytes:
    """Return `data` without an incomplete UTF-8 character at the end."""
    for length in range(1, min(4, len(data)) + 1):
        if data[-length] & 0xC0 != 0x80:
            character_length = 1 if data[-length] < 0xC0 else 2 + (data[-length] >= 0xE0) + (data[-length] >= 0xF0)
            return data[:-length] if character_length > length else data
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
    """Return the error for the model that corresponds to an error of the operating system."""
    if isinstance(error, ValueError):
        return InvalidInput(f"invalid path {path[:200]!r}")
    match error:
        case FileNotFoundError() | NotADirectoryError():
            return NotFound(f"no such file: {path}", hint="list_files shows the existing files")
        case IsADirectoryError():
            return InvalidInput(f"{path} is a folder", hint="list_files shows its content")
        # `WorkspaceTree` raises both with the error number of a missing permission, so only their texts differ.
        case PermissionError(strerror=str(reason)) if reason.startswith("Outside"):
            return InvalidInput(f"{path} is outside the workspace", hint="use paths relative to the workspace")
        case PermissionError(strerror=str(reason)) if reason.startswith("Guarded"):
            return InvalidInput(f"{path} is protected", hint="it affects later runs, so only the user may change it")
        case OSError(errno=errno.EFBIG):
            return LimitExceeded(f"{path} is too large to edit", hint=f"at most {MAX_WRITE_BYTES} bytes")
        case OSError(errno=errno.EINVAL | errno.ENXIO):
            return InvalidInput(f"{path} is not a regular file", hint="list_files shows the files")
        case OSError(errno=errno.EACCES | errno.EPERM | errno.ELOOP | errno.ENAMETOOLONG | errno.EROFS):
            return InvalidInput(f"{path} cannot be used: {error.strerror}")
        case _:
            return Unavailable(f"{path} cannot be used now: {error.strerror}", hint="check the disk")
