"""Which skills with code the user trusts, project by project. Each is identified by a digest of its files."""

from __future__ import annotations

import fcntl
import json
import os
import tempfile
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final, TypeAlias, cast

from bough.errors import StoreError
from bough.skills.find.discover import Root, find_skill_files
from bough.skills.find.places import list_project_places, project_root
from bough.skills.model import Diagnostic, is_skill_file
from bough.skills.trust.tree import EXCLUDED, SkillTree, read_file_tree, read_tree
from bough.types import JsonObject

VERSION: Final = 2
_CODE_ENDINGS = (
    ".py", ".pyc", ".pyo", ".pyw", ".pth", ".so", ".sh", ".bash", ".zsh", ".js", ".mjs", ".cjs", ".ts", ".rb", ".pl",
    ".php", ".ps1", ".bat", ".cmd", ".exe", ".dll", ".dylib", ".jar", ".class", ".wasm", ".lua",
)  # fmt: skip
_CODE_FILES = frozenset({".mcp.json", "mcp.json", "hooks.json", "package.json", "pyproject.toml", "Makefile"})
# Searched for in the frontmatter's bytes, without parsing: a false match only causes a needless review.
_CODE_FIELDS = (b"mcp", b"hooks", b"MCP", b"Hooks", b"HOOKS", b"Mcp")
_MAX_FILES = 20_000
_Projects: TypeAlias = dict[str, dict[str, dict[str, Any]]]


@dataclass(frozen=True, slots=True)
class SkillGrant:
    """What the user permitted for one skill.

    Attributes:
        digest: Digest of the skill's tree when it was trusted.
        hosts: Names of its MCP servers that may run on this machine, outside the sandbox.
        domains: Domains that its MCP servers may reach.
    """

    digest: str
    hosts: tuple[str, ...] = ()
    domains: tuple[str, ...] = ()


class TrustStore:
    """Stores which skills of which projects the user trusts, with the digest of each skill's folder.

    Args:
        home: bough's own folder; the file is `<home>/trust.json`.
    """

    def __init__(self, home: Path) -> None:
        self.file = home / "trust.json"

    def is_trusted(self, project: Path) -> bool:
        """Whether every skill of the project that contains code is trusted in its current state."""
        grants = self._load_grants(project)
        digests = digest_code_skills(project)
        return all(digest and name in grants and grants[name].digest == digest for name, digest in digests.items())

    def find_grant(self, project: Path, file: Path) -> SkillGrant | None:
        """Return the grant for the skill that `file` defines; None if the user has granted nothing."""
        return self._load_grants(project).get(name_in_project(file, project))

    def trusts_file(self, project: Path, name: str, digest: str) -> bool:
        """Whether the user trusted a file of the project, such as a hook file, with this hash."""
        return self._load().get(_project_key(project), {}).get("hooks", {}).get(name) == digest

    def find_programs(self, project: Path, name: str) -> JsonObject | None:
        """Return the recorded programs of a trusted hook file; None if no programs are recorded."""
        programs = self._load().get(_project_key(project), {}).get("programs", {}).get(name)
        return cast("JsonObject", programs) if isinstance(programs, dict) else None

    def trust(
        self,
        project: Path,
        *,
        other_files: Mapping[str, str] | None = None,
        skills: Mapping[str, SkillGrant] | None = None,
        programs: Mapping[str, JsonObject] | None = None,
    ) -> tuple[str, ...]:
        """Trust the code of the project's skills until it changes; return the trusted files.

        Args:
            other_files: The hashes of further files, such as hook files, by path in the project.
            skills: The grants that the user was shown and confirmed, by file; None: all skills in their current state.
            programs: Records of the programs of hook files, by file; see `find_programs`.
        """
        if skills is None:
            skills = {name: SkillGrant(digest) for name, digest in digest_code_skills(project).items() if digest}

        def add_entries(projects: _Projects) -> None:
            sections = projects.setdefault(_project_key(project), {})
            sections["skills"] = sections.get("skills", {}) | {name: asdict(grant) for name, grant in skills.items()}
            sections["hooks"] = sections.get("hooks", {}) | dict(other_files or {})
            sections["programs"] = sections.get("programs", {}) | dict(programs or {})

        self._change(add_entries)
        return (*skills, *(other_files or {}))

    def copy_grants(self, source: Path, copy: Path, *, within: Path) -> None:
        """Copy grants to a copied project. A copied skill gets the grant of the skill with the same digest.

        Args:
            source: A working folder of the project that was copied.
            copy: The working folder of the copy.
            within: The top folder of the copy; skills outside it receive no grant.
        """
        grants = {grant.digest: grant for grant in self._load_grants(source).values()}
        if not grants:
            return
        top = os.path.realpath(within)
        files = [file for file in list_code_files(copy) if Path(os.path.realpath(file)).is_relative_to(top)]
        digests = {name_in_project(file, copy): digest_skill(file) for file in files}
        skills = {name: grants[digest] for name, digest in digests.items() if digest and digest in grants}
        if skills:
            self.trust(copy, skills=skills)

    def revoke(self, project: Path) -> bool:
        """Revoke all trust in a project; return whether it had any."""
        removed: list[object] = []
        self._change(lambda projects: removed.append(projects.pop(_project_key(project), None)))
        return removed[0] is not None

    def digests(self) -> set[str]:
        """Return the digests of the trusted skills and of the copied programs of all projects."""
        digests: set[str] = set()
        for sections in self._load().values():
            digests |= {str(skill.get("digest")) for skill in sections.get("skills", {}).values()}
            for programs in sections.get("programs", {}).values():
                digests |= set(map(str, cast("dict[str, Any]", programs.get("copies") or {}).values()))
        return digests

    def _load_grants(self, project: Path) -> dict[str, SkillGrant]:
        skills = self._load().get(_project_key(project), {}).get("skills", {})
        return {str(name): _parse_grant(value) for name, value in skills.items() if isinstance(value, dict)}

    def _change(self, apply_change: Callable[[_Projects], object]) -> None:
        """Read the file, change its contents and replace it. A file lock serializes concurrent changes."""
        self.file.parent.mkdir(parents=True, exist_ok=True)
        # A separate file is locked, because `_save` replaces the trust file itself.
        with open(self.file.with_name("trust.lock"), "wb") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            projects = self._load()
            apply_change(projects)
            self._save(projects)

    def _load(self) -> _Projects:
        """Return the sections of each project; empty if there is no file. Malformed parts are left out."""
        try:
            data: Any = json.loads(self.file.read_bytes())
        except FileNotFoundError:
            return {}
        except (OSError, ValueError, RecursionError) as error:
            raise StoreError(
                f"cannot read {self.file}: {error}", hint="repair or remove it, then trust the project again"
            ) from error
        content = cast("dict[str, Any]", data if isinstance(data, dict) else {})
        version = content.get("version")
        if isinstance(version, int) and version > VERSION:
            raise StoreError(f"{self.file} has version {version}", hint=f"this bough reads version {VERSION}")
        if version != VERSION:
            return {}  # the digests of version 1 did not cover all files, so its grants are ignored
        data = content.get("projects")
        projects = cast("dict[str, Any]", data if isinstance(data, dict) else {})
        loaded: _Projects = {}
        for project, value in projects.items():
            if isinstance(value, dict):
                sections = cast("dict[str, Any]", value)
                loaded[project] = {name: section for name, section in sections.items() if isinstance(section, dict)}
        return loaded

    def _save(self, projects: _Projects) -> None:
        """Replace the trust file atomically."""
        handle, name = tempfile.mkstemp(dir=self.file.parent, prefix="trust")  # mode 0600 from creation
        with os.fdopen(handle, "w", encoding="utf-8", errors="surrogateescape") as out:
            json.dump({"version": VERSION, "projects": projects}, out, indent=1, sort_keys=True)
            out.flush()
            # Synced before the rename: otherwise the file could be empty after a power failure.
            os.fsync(out.fileno())
        try:
            os.replace(name, self.file)
        except OSError as error:
            os.unlink(name)
            raise StoreError(f"cannot write {self.file}: {error.strerror}", hint="move it away, then retry") from error


def _parse_grant(value: Any) -> SkillGrant:
    data = cast("dict[str, Any]", value)
    hosts, domains = (data.get(field) for field in ("hosts", "domains"))
    return SkillGrant(
        str(data.get("digest", "")),
        tuple(map(str, cast("list[Any]", hosts))) if isinstance(hosts, list) else (),
        tuple(map(str, cast("list[Any]", domains))) if isinstance(domains, list) else (),
    )


def contains_code(file: Path) -> bool:
    """Whether the skill that `file` defines contains scripts, hooks or MCP servers; True if that is uncertain.

    Checks all files that the digest covers, at any depth.
    """
    head = _read_head(file)
    if head is None or any(word in head for word in _CODE_FIELDS):
        return True
    if not is_skill_file(file.name):
        return False
    for count, (name, entry) in enumerate(_walk_files(file.parent)):
        # Links count as code, because they may lead to code; so do unreadable folders and skills with too many files.
        if count >= _MAX_FILES or entry is None or entry.is_symlink() or is_code(file.parent, name):
            return True
    return False


def is_code(folder: Path, name: str) -> bool:
    """Whether the file `name` in `folder` can run, or configures what runs."""
    base = name.rsplit("/", 1)[-1]
    if name.startswith("scripts/") or base in _CODE_FILES or base.lower().endswith(_CODE_ENDINGS):
        return True
    return os.access(folder / name, os.X_OK) or _has_shebang(folder / name)


def _walk_files(folder: Path) -> Iterator[tuple[str, os.DirEntry[str] | None]]:
    """Yield (relative path, entry) of every file and link except the skill file; the entry of a bad folder is None."""
    pending = [""]
    while pending:
        subfolder = pending.pop()
        try:
            with os.scandir(folder / subfolder) as entries:
                for entry in entries:
                    name = f"{subfolder}/{entry.name}" if subfolder else entry.name
                    if entry.is_dir(follow_symlinks=False):
                        if subfolder or entry.name not in EXCLUDED:
                            pending.append(name)
                    elif subfolder or not is_skill_file(entry.name):
                        yield name, entry
        except OSError:
            yield subfolder, None


def _has_shebang(path: Path) -> bool:
    """Whether a file starts with `#!`; True if it cannot be read."""
    try:
        handle = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)  # a pipe would block otherwise
    except OSError:
        return True
    try:
        return os.read(handle, 2) == b"#!"
    except OSError:
        return True
    finally:
        os.close(handle)


def _read_head(file: Path) -> bytes | None:
    """Return the bytes of a file up to the end of its frontmatter, at most 1 MiB; None if it cannot be read."""
    try:
        with file.open("rb") as handle:
            data = handle.read(1 << 20)
    except OSError:
        return None
    end = data.find(b"\n---", 3)
    return data if end < 0 else data[:end]


def list_code_files(project: Path) -> list[Path]:
    """Return the files that define the project's skills with code.

    If the project has no skills in the usual folders, it is searched as a folder of skills.
    """
    notes: list[Diagnostic] = []
    files = [Path(path) for root in list_project_places(project) for path, _ in find_skill_files(root, notes)]
    if not files:
        files = [Path(path) for path, _ in find_skill_files(Root(project, within=project), notes)]
        files = [file for file in files if is_skill_file(file.name)]
    return [file for file in files if contains_code(file)]


def digest_code_skills(project: Path) -> dict[str, str]:
    """Return the digest of each of the project's skills with code, by its file relative to the project."""
    return {name_in_project(file, project): digest_skill(file) for file in list_code_files(project)}


def read_skill_tree(file: Path) -> SkillTree:
    """Return the tree of the skill that `file` defines. O(bytes)."""
    return read_tree(file.parent) if is_skill_file(file.name) else read_file_tree(file)


def digest_skill(file: Path) -> str:
    """Return the digest of a skill; empty if it has faults and cannot be trusted. O(bytes)."""
    tree = read_skill_tree(file)
    return "" if tree.faults else tree.digest


def name_in_project(file: Path, project: Path) -> str:
    """Return the path of a skill's file below the project root, which is the key of its grant."""
    return os.path.relpath(os.path.realpath(file), os.path.realpath(project_root(project)))


def _project_key(project: Path) -> str:
    return os.path.realpath(project_root(project))
