"""Walking over a skill's folder: the files that count as the skill for trust, lock, scan and mounts.

The walk covers every file, at any depth, including `__pycache__` and `node_modules`: malicious files could hide in
folders that it leaves out. It uses file descriptors and follows no links. So an entry that is replaced during the walk
is either not read, or hashed and copied from the same descriptor.

Source: git's tree objects (a digest over modes, digests and names).
"""

from __future__ import annotations

import errno
import hashlib
import os
import re
import stat
import time
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Final, Literal

from bough.skills.model import Diagnostic
from bough.tree import FILE, open_beneath

MAX_FILES: Final = 20_000
MAX_BYTES: Final = 512 << 20
MAX_SECONDS: Final = 30.0
EXCLUDED: Final = frozenset({".git", ".hg", ".svn"})
"""Folders that are neither hashed nor mounted if they are at the top of a skill's folder."""

_FIRST_LINE = "bough-tree-1"
_PIECE_BYTES = 1 << 20
_MAX_LINK_STEPS = 2_000
"""How many names are looked up to follow a link before it is regarded as circular."""

_CONTROL = re.compile(r"[\x00-\x1f\x7f]")


@dataclass(frozen=True, slots=True)
class SkillEntry:
    """A file or a link of a skill.

    Attributes:
        path: Relative to the folder, with forward slashes.
        kind: `f`: a regular file; `l`: a link to a file or folder of the same skill.
        digest: sha256 of a file's bytes, hexadecimal; empty for a link.
        size: In bytes.
        executable: Whether any executable bit is set.
        target: The link's target, verbatim; empty for a file.
    """

    path: str
    kind: Literal["f", "l"]
    digest: str = ""
    size: int = 0
    executable: bool = False
    target: str = ""

    @property
    def line(self) -> str:
        """The line of the entry in the manifest."""
        if self.kind == "l":
            return f"l {self.target} {self.path}"
        return f"f {'x' if self.executable else '-'} {self.size} {self.digest} {self.path}"

    @property
    def is_bytecode(self) -> bool:
        """Whether the file is Python bytecode, which an interpreter may run instead of the source."""
        return self.path.endswith((".pyc", ".pyo")) or "__pycache__" in self.path.split("/")


@dataclass(frozen=True)
class SkillTree:
    """A skill's files and links as they were during one walk.

    Attributes:
        entries: Sorted by the bytes of their paths.
        faults: Errors about entries that cannot be trusted or mounted. A skill with faults is refused.
    """

    entries: tuple[SkillEntry, ...]
    faults: tuple[Diagnostic, ...] = ()

    @cached_property
    def digest(self) -> str:
        """sha256 of the manifest, hexadecimal. It covers all names, contents and executable bits."""
        return hashlib.sha256(self.manifest.encode("utf-8", "surrogateescape")).hexdigest()

    @property
    def manifest(self) -> str:
        """The entries, one per line, after a version line."""
        return "\n".join((_FIRST_LINE, *(entry.line for entry in self.entries)))

    @property
    def files(self) -> dict[str, str]:
        """The digest of each file, or `-> target` of each link, by path."""
        return {entry.path: entry.digest or f"-> {entry.target}" for entry in self.entries}


def read_tree(folder: Path, *, copy_to: Path | None = None) -> SkillTree:
    """Return the tree of a skill's folder. O(bytes), up to 20,000 files, 512 MiB and 30 seconds; blocks.

    Args:
        copy_to: An empty folder. Each file is copied to it while it is hashed, from the same descriptor, so the copy
            is exactly what was hashed. Bytecode is hashed but not copied.
    """
    walk = _Walk(copy_to)
    try:
        descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    except OSError as error:
        return SkillTree((), (_make_fault("", f"cannot read the folder: {error.strerror}", folder),))
    try:
        walk.read_folder(descriptor)
    finally:
        os.close(descriptor)
    entries = tuple(sorted(walk.entries, key=lambda entry: os.fsencode(entry.path)))
    faults = [*walk.faults, *_find_link_faults(entries, walk.folders)]
    if copy_to is not None and not faults:
        _complete_copy(copy_to, entries, walk.folders)
    return SkillTree(entries, tuple(_make_fault(path, message, folder, code) for path, message, code in faults))


def read_file_tree(file: Path, *, copy_to: Path | None = None) -> SkillTree:
    """Return the tree of a skill that is a single flat file. O(bytes).

    Args:
        copy_to: A folder to which the file is copied while it is hashed.
    """
    walk = _Walk(copy_to)
    try:
        descriptor = os.open(file.parent, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    except OSError as error:
        return SkillTree((), (_make_fault(file.name, f"cannot read the folder: {error.strerror}", file.parent),))
    try:
        walk.record_entry(descriptor, file.name, file.name)
    finally:
        os.close(descriptor)
    faults = [*walk.faults, *_find_link_faults(tuple(walk.entries), walk.folders)]
    return SkillTree(
        tuple(walk.entries), tuple(_make_fault(path, text, file.parent, code) for path, text, code in faults)
    )


def list_differences(old: dict[str, str], new: dict[str, str]) -> list[str]:
    """Return `new: …`, `gone: …` and `changed: …` for each path in which two sets of files differ, in this order.

    Args:
        old: Digests by path; see `SkillTree.files`.
        new: Digests by path, in the same form.
    """
    added = [f"new: {path}" for path in new if path not in old]
    removed = [f"gone: {path}" for path in old if path not in new]
    return [*added, *removed, *(f"changed: {path}" for path in new if path in old and old[path] != new[path])]


def read_manifest(text: str) -> dict[str, str]:
    """Return `SkillTree.files` from a manifest; empty for an invalid manifest. O(n)."""
    lines = text.split("\n")
    files: dict[str, str] = {}
    for line in lines[1:] if lines[0] == _FIRST_LINE else ():
        if match := re.fullmatch(r"f [x-] \d+ ([0-9a-f]{64}) (.+)|l (\S+) (.+)", line):
            files[match[2] or match[4]] = match[1] or f"-> {match[3]}"
    return files


_RawFault = tuple[str, str, str]
"""Path, message and code of a fault."""


class _Walk:
    """One walk over a skill: what was read, and how much may still be read."""

    def __init__(self, copy_to: Path | None) -> None:
        self.entries: list[SkillEntry] = []
        self.folders: set[str] = {""}
        self.faults: list[_RawFault] = []
        self._copy_to = copy_to
        self._bytes = 0
        self._deadline = time.monotonic() + MAX_SECONDS
        self._reached_limit = False

    def read_folder(self, top: int) -> None:
        """Read everything below the descriptor `top`. At most three descriptors are open at a time, at any depth."""
        pending = [""]
        while pending and not self._reached_limit:
            subfolder = pending.pop()
            with ExitStack() as opened:
                try:
                    folder = opened.enter_context(open_beneath(top, subfolder.split("/") if subfolder else ()))
                except OSError as error:
                    self.faults.append((subfolder, f"cannot read the folder: {error.strerror}", "tree-fault"))
                    continue
                pending += reversed(list(self._read_names(folder, subfolder)))

    def _read_names(self, folder: int, subfolder: str) -> Iterator[str]:
        """Record the files and links of one folder; yield the paths of its subfolders."""
        for name in sorted(os.listdir(folder), key=os.fsencode):
            if self._reached_limit:
                return
            if not subfolder and name in EXCLUDED:
                continue
            path = f"{subfolder}/{name}" if subfolder else name
            if self.record_entry(folder, name, path):
                self.folders.add(path)
                # Bytecode is hashed but not copied: Python would run it instead of the source beside it.
                if self._copy_to is not None and name != "__pycache__" and "__pycache__" not in subfolder.split("/"):
                    (self._copy_to / path).mkdir()
                yield path

    def record_entry(self, folder: int, name: str, path: str) -> bool:
        """Record a file, a link or a fault; for a folder, record nothing and return True."""
        if _CONTROL.search(path):
            self.faults.append((path, "the name contains control characters", "tree-fault"))
            return False
        try:
            info = os.lstat(name, dir_fd=folder)
            if stat.S_ISDIR(info.st_mode):
                return True
            if stat.S_ISLNK(info.st_mode):
                self._read_link(folder, name, path)
            elif stat.S_ISREG(info.st_mode):
                self._read_file(folder, name, path)
            else:
                self.faults.append((path, "neither a file nor a folder", "tree-fault"))
        except OSError as error:
            self.faults.append((path, f"cannot be read: {error.strerror}", "tree-fault"))
        return False

    def _read_link(self, folder: int, name: str, path: str) -> None:
        target = os.readlink(name, dir_fd=folder)
        # A blank separates target and path in the manifest. With blanks in targets, two links could have the same line.
        if _CONTROL.search(target) or " " in target:
            self.faults.append((path, "a link whose target contains blanks or control characters", "tree-fault"))
            return
        self.entries.append(SkillEntry(path, "l", target=target))
        if self._copy_to is not None and not self.entries[-1].is_bytecode:
            os.symlink(target, self._copy_to / path)

    def _read_file(self, folder: int, name: str, path: str) -> None:
        """Hash a regular file, and copy it if there is a copy; record the entry, or a fault."""
        handle = os.open(name, FILE, dir_fd=folder)
        try:
            # Checked by the descriptor: since `lstat`, the name may refer to another file.
            info = os.fstat(handle)
            if reason := _explain_bad_file(info):
                self.faults.append((path, reason, "tree-fault"))
                return
            self._bytes += info.st_size
            too_many = len(self.entries) >= MAX_FILES or self._bytes > MAX_BYTES
            if too_many or time.monotonic() > self._deadline:
                limits = f"{MAX_FILES} files, {MAX_BYTES >> 20} MB or {MAX_SECONDS:.0f} s"
                self.faults.append((path, f"the skill has more than {limits}", "too-large-to-trust"))
                self._reached_limit = True
                return
            executable = bool(info.st_mode & 0o111)
            entry = SkillEntry(path, "f", "", 0, executable)
            target = None if self._copy_to is None or entry.is_bytecode else self._copy_to / path
            digest, size = _copy_hashed(handle, target, executable=executable)
            self.entries.append(SkillEntry(path, "f", digest, size, executable))
        finally:
            os.close(handle)


def _explain_bad_file(info: os.stat_result) -> str:
    """Return why a file cannot be trusted; empty if it can."""
    if not stat.S_ISREG(info.st_mode):
        return "neither a file nor a folder"
    if info.st_mode & (stat.S_ISUID | stat.S_ISGID):
        return "is setuid or setgid"
    if info.st_nlink > 1:
        return "has several hard links, so it can be changed from elsewhere"
    return ""


def _copy_hashed(handle: int, target: Path | None, *, executable: bool) -> tuple[str, int]:
    """Hash a file, write the same bytes to `target` unless it is None, and return digest and size."""
    digest, size = hashlib.sha256(), 0
    # O_EXCL: the folder was empty at the start, so an existing file was created by another process.
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
    copy = None if target is None else os.open(target, flags, 0o600)
    try:
        while piece := os.read(handle, _PIECE_BYTES):
            digest.update(piece)
            size += len(piece)
            # Counted again: a file that grows while it is read becomes larger than the size that was checked.
            if size > MAX_BYTES:
                raise OSError(errno.EFBIG, "the file is too large")
            remaining = memoryview(piece)
            while copy is not None and remaining:
                remaining = remaining[os.write(copy, remaining) :]
        if copy is not None:
            os.fchmod(copy, 0o555 if executable else 0o444)
    finally:
        if copy is not None:
            os.close(copy)
    return digest.hexdigest(), size


def _find_link_faults(entries: tuple[SkillEntry, ...], folders: set[str]) -> Iterator[_RawFault]:
    """Yield a fault for each link that leaves the skill, dangles or is circular."""
    # Followed in the entries that were read; the file system may have changed since.
    links = {entry.path: entry.target for entry in entries if entry.kind == "l"}
    file_paths = {entry.path for entry in entries if entry.kind == "f"}
    for path in links:
        if reason := _explain_bad_link(path, links, file_paths | folders):
            yield path, reason, "tree-fault"


def _explain_bad_link(path: str, links: dict[str, str], paths: set[str]) -> str:
    """Return why a link is refused; empty if it leads to a file or folder of the skill.

    Args:
        links: The targets of all links by path.
        paths: All files and folders.
    """
    resolved: list[str] = []
    remaining = path.split("/")
    for _ in range(_MAX_LINK_STEPS):
        if not remaining:
            return "" if "/".join(resolved) in paths else "a dangling link"
        name = remaining.pop(0)
        if name == "..":
            if not resolved:
                return "a link out of the skill"
            resolved.pop()
            continue
        if name in ("", "."):
            continue
        target = links.get("/".join((*resolved, name)))
        if target is None:
            resolved.append(name)
        elif target.startswith("/"):
            return "a link out of the skill"
        else:
            remaining = [*target.split("/"), *remaining]
    return "a circular link"


def _complete_copy(copy: Path, entries: tuple[SkillEntry, ...], folders: set[str]) -> None:
    """Make the folders of a copy read-only; remove links to bytecode, which was not copied."""
    for entry in entries:
        if entry.kind == "l" and not entry.is_bytecode and not os.path.exists(copy / entry.path):
            os.unlink(copy / entry.path)
    for folder in sorted(folders, key=lambda path: path.count("/"), reverse=True):
        if os.path.isdir(copy / folder):
            os.chmod(copy / folder, 0o555)  # noqa: S103 - a sandbox may run as another user


def _make_fault(path: str, message: str, folder: Path, code: str = "tree-fault") -> Diagnostic:
    """Return the diagnostic of an entry; control characters in its path are replaced."""
    display_path = _CONTROL.sub("?", path)
    fix = "replace the link with the file" if "link" in message else "remove it, or make it readable"
    return Diagnostic(code, "error", f"{display_path or '.'}: {message}", None, fix, str(folder / display_path))
