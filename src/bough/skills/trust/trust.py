"""Whether a project's skills may bring code along: a person says so once, for the content as it was then."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Mapping
from pathlib import Path

from bough.errors import StoreError
from bough.skills.find.discover import skill_files
from bough.skills.find.places import project_places, project_root
from bough.skills.model import Diagnostic, is_skill_file
from bough.skills.read.resources import walk_files

_CODE_ENDINGS = (".py", ".sh", ".bash", ".js", ".mjs", ".cjs", ".ts", ".rb", ".pl", ".php", ".ps1", ".bat", ".exe")
_CODE_FILES = frozenset({".mcp.json", "mcp.json", "hooks.json", "package.json", "pyproject.toml", "Makefile"})
_CODE_FIELDS = (b"mcp", b"hooks", b"MCP", b"Hooks", b"HOOKS", b"Mcp")


class TrustStore:
    """Remembers which skills of which projects a person trusts, each by the hash of its folder.

    Args:
        home: bough's own folder; the file is `<home>/trust.json`.
    """

    def __init__(self, home: Path) -> None:
        self.file = home / "trust.json"

    def is_trusted(self, project: Path) -> bool:
        """Whether every skill of the project that carries code was trusted as it is now."""
        known = self._of(project)
        return all(known.get(name) == digest for name, digest in code_skills(project).items())

    def is_trusted_skill(self, project: Path, file: Path) -> bool:
        """Whether the skill that `file` defines was trusted as it is now. O(bytes of its folder)."""
        return self._of(project).get(_name(file, project_root(project))) == skill_digest(file)

    def remembers(self, project: Path, name: str, digest: str) -> bool:
        """Whether a person trusted this file of the project with this hash."""
        return self._of(project).get(name) == digest

    def trust(self, project: Path, *, also: Mapping[str, str] | None = None) -> tuple[str, ...]:
        """Trust what the project's skills carry now; any change asks again. Returns the files that are trusted.

        Args:
            also: Further files of the project with their hashes, such as files of hooks.
        """
        trusted = code_skills(project) | dict(also or {})
        known = self._load()
        known[_key(project)] = self._of(project) | trusted
        self._save(known)
        return tuple(trusted)

    def revoke(self, project: Path) -> bool:
        """Forget the trust in a project; returns whether there was any."""
        known = self._load()
        removed = known.pop(_key(project), None) is not None
        self._save(known)
        return removed

    def _of(self, project: Path) -> dict[str, str]:
        return self._load().get(_key(project), {})

    def _load(self) -> dict[str, dict[str, str]]:
        try:
            data = json.loads(self.file.read_bytes())
        except FileNotFoundError:
            return {}
        except (OSError, ValueError, RecursionError) as error:
            raise StoreError(
                f"{self.file} cannot be read: {error}", hint="mend or remove it; then trust again"
            ) from error
        projects = data.items() if isinstance(data, dict) else ()  # pyright: ignore
        return {str(key): value for key, value in projects if isinstance(value, dict)}  # pyright: ignore

    def _save(self, known: dict[str, dict[str, str]]) -> None:
        import tempfile

        self.file.parent.mkdir(parents=True, exist_ok=True)
        handle, name = tempfile.mkstemp(dir=self.file.parent, prefix="trust")
        with os.fdopen(handle, "w", encoding="utf-8") as out:
            json.dump(known, out, indent=1, sort_keys=True)
        os.replace(name, self.file)


def carries_code(file: Path) -> bool:
    """Whether the skill that `file` defines brings scripts, hooks or MCP servers; when in doubt, it does."""
    head = _head(file)
    if head is None or any(word in head for word in _CODE_FIELDS):
        return True
    return is_skill_file(file.name) and any(
        name is None or _is_code(file.parent, name) for name in walk_files(file.parent)
    )


def _is_code(folder: Path, name: str) -> bool:
    base = name.rsplit("/", 1)[-1]
    if name.startswith("scripts/") or base in _CODE_FILES or base.lower().endswith(_CODE_ENDINGS):
        return True
    return os.access(folder / name, os.X_OK) or _has_shebang(folder / name)


def _has_shebang(path: Path) -> bool:
    try:
        with path.open("rb") as handle:
            return handle.read(2) == b"#!"
    except OSError:
        return True


def _head(file: Path) -> bytes | None:
    try:
        with file.open("rb") as handle:
            data = handle.read(1 << 20)
    except OSError:
        return None
    end = data.find(b"\n---", 3)
    return data if end < 0 else data[:end]


def code_skills(project: Path) -> dict[str, str]:
    """Return the project's skills that carry code: file relative to the project -> hash of the skill."""
    top = project_root(project)
    notes: list[Diagnostic] = []
    files = [Path(path) for root in project_places(project) for path, _ in skill_files(root, notes)]
    return {_name(file, top): skill_digest(file) for file in files if carries_code(file)}


def skill_digest(file: Path) -> str:
    """Return the hash of a skill's file and every file of its folder, names and contents. O(bytes)."""
    digest = hashlib.sha256(_digest(file))
    names = walk_files(file.parent) if is_skill_file(file.name) else ()
    for name in sorted(each for each in names if each is not None):
        digest.update(f"{len(name)}:{name}:".encode("utf-8", "surrogateescape"))
        digest.update(_digest(file.parent / name))
    return digest.hexdigest()


def _digest(path: Path) -> bytes:
    try:
        with path.open("rb") as handle:
            return hashlib.file_digest(handle, "sha256").digest()
    except OSError:
        return b"unreadable"


def _key(project: Path) -> str:
    return os.path.realpath(project_root(project))


def _name(file: Path, top: Path) -> str:
    return os.path.relpath(os.path.realpath(file), os.path.realpath(top))
