"""`skills.lock`: the installed skills, their sources, and the digests of all their files."""

from __future__ import annotations

import fcntl
import json
import os
import tempfile
from collections.abc import Collection, Generator, Iterable, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any, Final, cast

from bough.errors import InvalidInput, NotFound, StoreError
from bough.skills.find.discover import Root, find_skill_files
from bough.skills.model import Diagnostic, is_skill_file
from bough.skills.trust.snapshot import remove_tree
from bough.skills.trust.tree import list_differences, read_tree

NAME = "skills.lock"
DIGEST_DIGITS: Final = 12
"""Length of the digest prefix that names the folder of an installed skill."""

VERSION: Final = 2


@dataclass(frozen=True, slots=True)
class LockedSkill:
    """The lock entry of a skill: its source and its files when it was locked.

    Attributes:
        folder: Relative to the folder of the lock file.
        source: The folder, archive, URL or git repository it was installed from.
        files: The sha256 of each file, hexadecimal, or `-> target` of each link, by path.
        digest: Digest of the whole skill; see `SkillTree.digest`.
        name: The name in its `SKILL.md`; empty if unknown.
        ref: The requested branch, tag or commit of a git repository; empty for the default branch.
        commit: The commit it was installed from.
        path: Its folder in the source.
        disabled: Whether it is installed but not used.
        alias: The local name; None: `name` is used.
        hosts: Names of its MCP servers that may run on this machine, outside the sandbox.
        domains: Domains that its MCP servers may reach.
    """

    folder: str
    source: str = ""
    files: Mapping[str, str] = field(default_factory=dict[str, str])
    digest: str = ""
    name: str = ""
    ref: str = ""
    commit: str = ""
    path: str = ""
    disabled: bool = False
    alias: str | None = None
    hosts: tuple[str, ...] = ()
    domains: tuple[str, ...] = ()

    @property
    def used_name(self) -> str:
        """The name used in lists and by `/name`."""
        return self.alias or self.name or self.folder.rpartition("/")[2]


def lock_skill(root: Path, folder: str, source: str = "") -> tuple[LockedSkill, tuple[Diagnostic, ...]]:
    """Return the lock entry of the skill in `root / folder`, and the faults that prevent locking. O(bytes)."""
    tree = read_tree(root / folder)
    return LockedSkill(folder, source, tree.files, tree.digest), tree.faults


def lock_all(
    root: Path, sources: Mapping[str, str] | None = None, *, faults: list[Diagnostic] | None = None
) -> list[LockedSkill]:
    """Return the lock entries of all skills below `root`, sorted by folder; skills with faults are omitted.

    Args:
        sources: Sources by folder. Other skills keep the source from the existing lock file.
        faults: Receives the faults of the omitted skills.
    """
    existing_entries = {entry.folder: entry for entry in _read_existing(root / NAME)}
    notes: list[Diagnostic] = []
    folders = (Path(path).parent for path, _ in find_skill_files(Root(root), notes) if is_skill_file(Path(path).name))
    locked: list[LockedSkill] = []
    for relative_folder in sorted(folder.relative_to(root.absolute()).as_posix() for folder in folders):
        existing = existing_entries.get(relative_folder, LockedSkill(relative_folder))
        entry, entry_faults = lock_skill(root, relative_folder, (sources or {}).get(relative_folder, existing.source))
        if not entry_faults:
            # Alias, commit and permitted hosts are only in the existing entry, not in the folder.
            locked.append(replace(existing, source=entry.source, files=entry.files, digest=entry.digest))
        elif faults is not None:
            faults.extend(entry_faults)
    return locked


def _read_existing(file: Path) -> list[LockedSkill]:
    """Return the entries of a lock file; empty if it does not exist or is invalid."""
    try:
        return read_lock(file)
    except (NotFound, InvalidInput):  # an invalid lock file is replaced
        return []


def write_lock(file: Path, skills: Iterable[LockedSkill]) -> None:
    """Replace a lock file atomically; the same skills give the same bytes.

    Raises:
        StoreError: The file cannot be written; the old file is unchanged.
    """
    entries = [asdict(skill) for skill in sorted(skills, key=lambda skill: skill.folder)]
    text = json.dumps({"version": VERSION, "skills": entries}, indent=1, sort_keys=True, ensure_ascii=False) + "\n"
    try:
        # In the same folder: `os.replace` is atomic within one file system only.
        handle, name = tempfile.mkstemp(dir=file.parent, prefix=f".{file.name}.")
        try:
            with os.fdopen(handle, "w", encoding="utf-8", errors="surrogateescape") as out:
                out.write(text)
                out.flush()
                os.fchmod(out.fileno(), 0o644)  # mkstemp made it 0600
                # Synced before the rename: otherwise the lock file could be empty after a power failure.
                os.fsync(out.fileno())
            os.replace(name, file)
        except BaseException:
            os.unlink(name)
            raise
    except OSError as error:
        raise StoreError(f"cannot write {file}: {error.strerror}", hint="free disk space, or move it away") from error


@contextmanager
def change_lock(root: Path) -> Generator[dict[str, LockedSkill]]:
    """Yield the entries of a lock file by folder, for the `with` block to modify; then replace the file with them.

    Readers see either the old entries or the new ones. A file lock serializes concurrent changes. An exception in the
    block leaves the file unchanged. Folders of skills that the new file does not list are removed: these skills were
    replaced, or their installation was killed.
    """
    root.mkdir(parents=True, exist_ok=True)
    # `skills.lock` itself cannot be locked: `os.replace` gives it a new inode.
    with open(root / f".{NAME}.guard", "wb") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        entries = {entry.folder: entry for entry in read_lock(root / NAME)} if (root / NAME).exists() else {}
        yield entries
        write_lock(root / NAME, entries.values())
        # Before the lock is released: another installation could then add a folder that these entries do not list.
        _remove_unlisted(root, set(entries))


def _remove_unlisted(root: Path, listed_folders: Collection[str]) -> None:
    """Remove the folders of skills below `root` that are not in `listed_folders`."""
    hex_digits = frozenset("0123456789abcdef")
    for digest_folder in sorted(root.iterdir()):
        # Only folders whose name is a digest: an installation creates no others.
        if (
            len(digest_folder.name) != DIGEST_DIGITS
            or not hex_digits.issuperset(digest_folder.name)
            or not digest_folder.is_dir()
        ):
            continue
        for folder in sorted(digest_folder.iterdir()):
            if f"{digest_folder.name}/{folder.name}" not in listed_folders:
                remove_tree(folder)
        if not any(digest_folder.iterdir()):
            digest_folder.rmdir()


def read_lock(file: Path) -> list[LockedSkill]:
    """Return the entries of a lock file.

    Raises:
        NotFound: The file does not exist.
        InvalidInput: The file is not a lock file, or has another version.
    """
    try:
        data: Any = json.loads(file.read_text("utf-8", errors="surrogateescape"))
        if data["version"] != VERSION:
            raise InvalidInput(
                f"{file} has version {data['version']!r}, but this bough reads version {VERSION}",
                hint="review the skills, then rewrite it with `bough skills lock`",
            )
        return [_parse_entry(entry) for entry in data["skills"]]
    except FileNotFoundError as error:
        raise NotFound(f"{file} does not exist", hint="create it with `bough skills lock`") from error
    except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise InvalidInput(f"not a lock file: {file}: {error!r}", hint="rewrite it with `bough skills lock`") from error


def _parse_entry(entry: Any) -> LockedSkill:
    """Return the entry of a lock file; raise an error that `read_lock` converts if it is invalid."""
    folder, source, files, digest = entry["folder"], entry["source"], entry["files"], entry["digest"]
    parts = str(folder).split("/")
    # A lock file may come from an untrusted repository, so it must not name folders outside its own.
    if not isinstance(source, str) or not isinstance(digest, str) or ".." in parts or str(folder).startswith("/"):
        raise ValueError(f"invalid entry {folder!r}")
    text_fields = {name: str(entry.get(name) or "") for name in ("name", "ref", "commit", "path")}
    alias = entry.get("alias")
    return LockedSkill(
        str(folder),
        source,
        {str(k): str(v) for k, v in cast("dict[Any, Any]", files).items()},
        digest,
        **text_fields,
        disabled=entry.get("disabled") is True,
        alias=alias if isinstance(alias, str) and alias else None,
        hosts=tuple(str(name) for name in entry.get("hosts") or ()),
        domains=tuple(str(name) for name in entry.get("domains") or ()),
    )


def verify_lock(root: Path) -> list[Diagnostic]:
    """Return an error for each file below `root` that differs from the lock file; empty if nothing has changed.

    Raises:
        NotFound: There is no lock file.
        InvalidInput: The lock file is invalid.
    """
    locked = {entry.folder: entry for entry in read_lock(root / NAME)}
    faults: list[Diagnostic] = []
    for folder, entry in locked.items():
        if not (root / folder).is_dir():
            faults.append(_make_fault(root / folder, "lock-missing", "the skill is missing"))
            continue
        current_entry, current_faults = lock_skill(root, folder)
        faults += current_faults
        differences = list_differences(dict(entry.files), dict(current_entry.files))
        changes = [_make_difference_fault(root / folder, difference) for difference in differences]
        # The digest covers executable bits, `files` does not.
        if not changes and not current_faults and current_entry.digest != entry.digest:
            changes = [_make_fault(root / folder, "lock-changed", "the skill has changed")]
        faults += changes
    notes: list[Diagnostic] = []
    for path, _ in find_skill_files(Root(root), notes):
        folder = Path(path).parent.relative_to(root.absolute()).as_posix()
        if folder not in locked and is_skill_file(Path(path).name):
            faults.append(_make_fault(Path(path), "lock-unknown", "the skill is not in the lock file"))
    return faults


def _make_difference_fault(folder: Path, difference: str) -> Diagnostic:
    """Return the error for a line of `list_differences`."""
    kind, _, name = difference.partition(": ")
    code, message = {
        "new": ("lock-added", "the file is new"),
        "gone": ("lock-removed", "the file is missing"),
        "changed": ("lock-changed", "the file has changed"),
    }[kind]
    return _make_fault(folder / name, code, message)


def _make_fault(path: Path, code: str, message: str) -> Diagnostic:
    fix = "review it; to accept it, run `bough skills lock`"
    return Diagnostic(code, "error", message, None, fix, str(path))
