"""The files of a workspace, for tools: confined to the folder, bounded in size, links out of it refused."""

from __future__ import annotations

import fnmatch
import os
from collections.abc import Iterator
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Any

from bough.errors import Conflict, InvalidInput, LimitExceeded, NotFound
from bough.skills.run.scripts import GUARDED

MAX_READ_BYTES = 256 << 10
MAX_WRITE_BYTES = 4 << 20
MAX_ENTRIES = 20_000
MAX_LISTED = 500
MAX_FOUND = 200
SKIPPED_FOLDERS = frozenset({".git", ".venv", "node_modules", "__pycache__"})


@dataclass(frozen=True)
class WorkspaceFiles:
    """Reads and writes under `root` and nowhere else."""

    root: Path

    def read(self, path: str, *, start_line: int = 1, max_lines: int = 2000) -> str:
        """Return lines of a text file, at most 256 KiB of them, with a note where there are more.

        Raises:
            NotFound: There is no such file.
            InvalidInput: It is outside the workspace, a folder, or not text.
        """
        file = self._file(path)
        with file.open("rb") as handle:
            data = handle.read(MAX_WRITE_BYTES + 1)
        if b"\0" in data[:8192]:
            raise InvalidInput(f"{path} is not a text file", hint="use a script that understands its format")
        lines = data.decode("utf-8", "replace").splitlines(keepends=True)
        first = max(start_line, 1) - 1
        part: list[str] = []
        size = 0
        for line in lines[first : first + max_lines]:
            size += len(line)
            if size > MAX_READ_BYTES:
                break
            part.append(line)
        last = first + len(part)
        more = f"\n[lines {first + 1}-{last} of {len(lines)}; read on with start_line={last + 1}]"
        return "".join(part) + (more if last < len(lines) else "")

    def write(self, path: str, content: str) -> str:
        """Write a text file, making its folders, and say what was written.

        Raises:
            InvalidInput: It is outside the workspace or guarded.
            LimitExceeded: The content is longer than 4 MiB.
        """
        data = content.encode("utf-8", "replace")
        if len(data) > MAX_WRITE_BYTES:
            raise LimitExceeded(f"{len(data)} bytes are too many for one file", hint=f"at most {MAX_WRITE_BYTES}")
        file = self._inside(path, writable=True)
        if file.is_dir():
            raise InvalidInput(f"{path} is a folder", hint="name a file in it")
        file.parent.mkdir(parents=True, exist_ok=True)
        _replace(file, data)
        return f"wrote {len(data)} bytes to {path}"

    def edit(self, path: str, old: str, new: str) -> str:
        """Replace the one place where `old` stands in a file, and say so.

        Raises:
            NotFound: There is no such file, or `old` is not in it.
            Conflict: `old` stands there more than once.
        """
        file = self._file(path, writable=True)
        if file.stat().st_size > MAX_WRITE_BYTES:
            raise LimitExceeded(f"{path} is too long to be edited", hint=f"at most {MAX_WRITE_BYTES} bytes")
        text = file.read_bytes().decode("utf-8", "surrogateescape")
        count = text.count(old) if old else 0
        if count == 0:
            raise NotFound(f"the text to replace is not in {path}", hint="read the file and copy the text exactly")
        if count > 1:
            raise Conflict(f"the text to replace stands in {path} {count} times", hint="give more of what is around it")
        _replace(file, text.replace(old, new).encode("utf-8", "surrogateescape"))
        return f"replaced 1 place in {path}"

    def list(self, path: str = ".", *, pattern: str = "*") -> list[str]:
        """Return files below a folder whose path or name matches a glob, sorted, at most 500."""
        found = sorted(each for each in self._walk(path) if _matches(each, pattern))
        return found[:MAX_LISTED] + ([f"[{len(found) - MAX_LISTED} more]"] if len(found) > MAX_LISTED else [])

    def search(self, expression: str, path: str = ".", *, pattern: str = "*") -> list[str]:
        """Return lines that match a regular expression (RE2), as `file:line: text`, at most 200.

        Raises:
            InvalidInput: The expression is none.
        """
        re2: Any = import_module("re2")  # it has no type stubs
        options = re2.Options()
        options.log_errors = False
        try:
            wanted = re2.compile(expression, options)
        except re2.error as error:
            raise InvalidInput(f"{expression!r} is no regular expression: {error}", hint="RE2 syntax") from error
        found: list[str] = []
        for name in sorted(each for each in self._walk(path) if _matches(each, pattern)):
            found += self._found_in(name, wanted)
            if len(found) >= MAX_FOUND:
                return [*found[:MAX_FOUND], "[there are more]"]
        return found

    def _found_in(self, name: str, wanted: Any) -> list[str]:
        file = self.root / name
        if file.is_symlink() or file.stat().st_size > MAX_WRITE_BYTES:
            return []
        data = file.read_bytes()
        if b"\0" in data[:8192]:
            return []
        lines = data.decode("utf-8", "replace").splitlines()
        return [f"{name}:{n}: {line[:300]}" for n, line in enumerate(lines, 1) if wanted.search(line)]

    def _walk(self, path: str) -> Iterator[str]:
        seen = 0
        for folder, folders, files in os.walk(self._inside(path), followlinks=False):
            folders[:] = sorted(name for name in folders if name not in SKIPPED_FOLDERS)
            for name in files:
                seen += 1
                if seen > MAX_ENTRIES:
                    raise LimitExceeded(f"more than {MAX_ENTRIES} files below {path}", hint="name one further down")
                yield os.path.relpath(os.path.join(folder, name), self.root)

    def _file(self, path: str, *, writable: bool = False) -> Path:
        file = self._inside(path, writable=writable)
        if file.is_dir():
            raise InvalidInput(f"{path} is a folder", hint="list_files shows what is in it")
        if not file.is_file():
            raise NotFound(f"there is no file {path}", hint="list_files shows what there is")
        return file

    def _inside(self, path: str, *, writable: bool = False) -> Path:
        """Return the real path, which is under the real root."""
        if "\0" in path or len(path) > 4096:
            raise InvalidInput(f"{path[:80]!r} is no path")
        root = os.path.realpath(self.root)
        real = os.path.realpath(os.path.join(root, path or "."))
        if real != root and not real.startswith(root + os.sep):
            raise InvalidInput(f"{path} is outside the workspace", hint="use paths relative to the workspace")
        if writable and set(GUARDED).intersection(Path(os.path.relpath(real, root)).parts):
            raise InvalidInput(f"{path} may not be written", hint="it decides what may happen later; ask the user")
        return Path(real)


def _matches(path: str, pattern: str) -> bool:
    return fnmatch.fnmatch(path, pattern) or fnmatch.fnmatch(os.path.basename(path), pattern)


def _replace(file: Path, data: bytes) -> None:
    """Write next to the file and rename, so that a reader sees the old or the new text and never half of one."""
    mode = file.stat().st_mode & 0o777 if file.exists() else None
    temporary = file.with_name(f".{file.name}.{os.getpid()}.new")
    try:
        with temporary.open("xb") as handle:
            handle.write(data)
        if mode is not None:
            temporary.chmod(mode)
        temporary.replace(file)
    finally:
        temporary.unlink(missing_ok=True)
