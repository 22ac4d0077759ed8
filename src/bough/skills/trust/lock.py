"""`skills.lock`: which skills were installed, where from, and the digest of every byte of them."""

from __future__ import annotations

import hashlib
import json
import os
import tempfile
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, cast

from bough.errors import InvalidInput, NotFound
from bough.skills.find.discover import Root, skill_files
from bough.skills.model import Diagnostic, is_skill_file
from bough.skills.read.resources import walk_files

NAME = "skills.lock"
_VERSION = 1


@dataclass(frozen=True, slots=True)
class LockedSkill:
    """One skill as it was when it was locked.

    Attributes:
        folder: Relative to the folder of the lock file.
        source: Where it came from: a folder, an archive, `<git url>@<commit>`, an address.
        files: Relative path to sha256, hexadecimal.
    """

    folder: str
    source: str = ""
    files: Mapping[str, str] = field(default_factory=dict[str, str])

    @property
    def digest(self) -> str:
        """One hash for all of it: names and contents."""
        joined = "".join(f"{name}\0{sha}\n" for name, sha in sorted(self.files.items()))
        return hashlib.sha256(joined.encode("utf-8", "surrogateescape")).hexdigest()


def lock_skill(root: Path, folder: str, source: str = "") -> LockedSkill:
    """Return the lock of the skill in `root / folder`. O(bytes).

    Raises:
        InvalidInput: The folder has more files than a lock covers.
    """
    home = root / folder
    names: list[str] = [name for name in os.listdir(home) if is_skill_file(name)]
    for name in walk_files(home):
        if name is None:
            raise InvalidInput(f"{home} is nested too deeply to be locked", hint="take build output out of the skill")
        names.append(name)
    return LockedSkill(folder, source, {name: _sha256(home / name) for name in sorted(names)})


def lock_all(root: Path, sources: Mapping[str, str] | None = None) -> list[LockedSkill]:
    """Return the locks of every skill under `root`, sorted by folder.

    Args:
        sources: Folder to where it came from; those of an earlier lock file are kept.
    """
    known = {each.folder: each.source for each in read_lock(root / NAME)} if (root / NAME).exists() else {}
    known |= dict(sources or {})
    notes: list[Diagnostic] = []
    folders = (Path(path).parent for path, _ in skill_files(Root(root), notes) if is_skill_file(Path(path).name))
    names = sorted(folder.relative_to(root.absolute()).as_posix() for folder in folders)
    return [lock_skill(root, name, known.get(name, "")) for name in names]


def write_lock(file: Path, skills: Iterable[LockedSkill]) -> None:
    """Write a lock file, replacing what was there at once; the same skills give the same bytes."""
    entries = [asdict(each) | {"digest": each.digest} for each in sorted(skills, key=lambda each: each.folder)]
    text = json.dumps({"version": _VERSION, "skills": entries}, indent=1, sort_keys=True, ensure_ascii=False) + "\n"
    handle, name = tempfile.mkstemp(dir=file.parent, prefix=file.name)
    with os.fdopen(handle, "w", encoding="utf-8", errors="surrogateescape") as out:
        out.write(text)
    os.chmod(name, 0o644)
    os.replace(name, file)


def read_lock(file: Path) -> list[LockedSkill]:
    """Return what a lock file says.

    Raises:
        NotFound: There is none.
        InvalidInput: It is no lock file.
    """
    try:
        data: Any = json.loads(file.read_text("utf-8", errors="surrogateescape"))
        if data["version"] != _VERSION:
            raise InvalidInput(f"{file} has version {data['version']!r}", hint=f"this bough reads version {_VERSION}")
        return [_entry(each) for each in data["skills"]]
    except FileNotFoundError as error:
        raise NotFound(f"there is no {file}", hint="write one with `bough skills lock`") from error
    except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise InvalidInput(
            f"{file} is no lock file: {error!r}", hint="write it again with `bough skills lock`"
        ) from error


def _entry(each: Any) -> LockedSkill:
    folder, source, files = each["folder"], each["source"], each["files"]
    parts = str(folder).split("/")
    if not isinstance(source, str) or ".." in parts or str(folder).startswith("/"):
        raise ValueError(f"bad entry {folder!r}")
    return LockedSkill(str(folder), source, {str(k): str(v) for k, v in cast("dict[Any, Any]", files).items()})


def verify_lock(root: Path) -> list[Diagnostic]:
    """Return an error for every byte under `root` that differs from its lock file; nothing when all is as it was.

    Raises:
        NotFound: There is no lock file.
        InvalidInput: It is none.
    """
    locked = {each.folder: each for each in read_lock(root / NAME)}
    faults: list[Diagnostic] = []
    for folder, then in locked.items():
        if not (root / folder).is_dir():
            faults.append(_fault(root / folder, "lock-missing", "the skill is gone"))
            continue
        faults += _differences(root / folder, then.files, lock_skill(root, folder).files)
    notes: list[Diagnostic] = []
    for path, _ in skill_files(Root(root), notes):
        folder = Path(path).parent.relative_to(root.absolute()).as_posix()
        if folder not in locked:
            faults.append(_fault(Path(path), "lock-unknown", "the skill is not in the lock file"))
    return faults


def _differences(home: Path, then: Mapping[str, str], now: Mapping[str, str]) -> list[Diagnostic]:
    faults = [_fault(home / name, "lock-removed", "the file is gone") for name in then if name not in now]
    faults += [_fault(home / name, "lock-added", "the file is new") for name in now if name not in then]
    changed = [name for name in then if name in now and then[name] != now[name]]
    return faults + [_fault(home / name, "lock-changed", "the file has changed") for name in changed]


def _fault(path: Path, code: str, message: str) -> Diagnostic:
    fix = "look at it; when it is as you want it, `bough skills lock`"
    return Diagnostic(code, "error", message, None, fix, str(path))


def _sha256(path: Path) -> str:
    with path.open("rb") as handle:
        return hashlib.file_digest(handle, "sha256").hexdigest()
