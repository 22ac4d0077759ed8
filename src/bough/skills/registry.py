"""The skills one conversation can use: discovered once, each read in full on demand.

Source: agentic_patterns (`SkillRegistry.discover`, `get`, `list_all`).
"""

from __future__ import annotations

import hashlib
import os
import tempfile
import weakref
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn

from bough.errors import BoughError, Conflict, InvalidInput, NotFound, PermissionDenied, StoreError
from bough.skills.find.discover import Root, discover
from bough.skills.find.index import SkillIndex
from bough.skills.find.places import list_places, read_disabled
from bough.skills.find.rule_files import read_rules
from bough.skills.find.search import SkillSearch
from bough.skills.model import Diagnostic, Skill, SkillMetadata, is_skill_file
from bough.skills.read.fields import explain_unsafe_name
from bough.skills.read.parse import find_skill_file, read_bounded, read_skill
from bough.skills.read.resources import suggest_nearest
from bough.skills.trust.lock import NAME, LockedSkill, read_lock
from bough.skills.trust.snapshot import SkillSnapshot, SnapshotStore, remove_tree
from bough.skills.trust.tree import EXCLUDED, list_differences
from bough.skills.trust.trust import SkillGrant, TrustStore, contains_code, read_skill_tree


class SkillRegistry:
    """Skills by name. The first skill found of a name wins; later ones give a diagnostic.

    Reading is safe for concurrent use, discovery is not.

    Attributes:
        diagnostics: Of discovery, including refused and duplicate files.
        withheld: Skills of a project that contain code and are not trusted.
        disabled: Skills that the user disabled; no other method returns them.
    """

    def __init__(self, *, index: Path | None = None, home: Path | None = None) -> None:
        """Start empty.

        Args:
            index: A folder for a cache of what was read, which makes the next discovery faster.
            home: bough's own folder, with trust and snapshots; None: no trust, and snapshots in a temporary folder.
        """
        self.diagnostics: list[Diagnostic] = []
        self.withheld: list[SkillMetadata] = []
        self.disabled: list[SkillMetadata] = []
        self._disabled_paths: frozenset[str] = frozenset()
        self._index = index
        self._skills: dict[str, SkillMetadata] = {}
        self._added: dict[str, Skill] = {}
        self._search: SkillSearch | None = None
        self._origin = None if home is None else _Origin(Path(), TrustStore(home))
        self._snapshots = None if home is None else SnapshotStore(home / "snapshots")
        self._locked: dict[str, LockedSkill] = {}

    @classmethod
    def open(
        cls,
        workspace: Path,
        *,
        home: Path,
        roots: Sequence[Path] = (),
        trust: TrustStore | None = None,
        changed_rules: Collection[str] = (),
    ) -> SkillRegistry:
        """Return a registry of all skills that apply in a working folder.

        Args:
            workspace: The working folder; its project's folders are searched up to the git root.
            home: bough's own folder (`Settings.home`): user skills, installed skills, trust and the index.
            roots: Explicitly configured folders; their skills take precedence and are trusted.
            trust: Which skills are trusted; None: the store in `home`.
            changed_rules: Digests of the rule files that changed while tools of the conversation ran; see `may_follow`.
        """
        registry = cls(index=home / "cache")
        registry._origin = _Origin(workspace, trust or TrustStore(home))
        registry._snapshots = SnapshotStore(home / "snapshots")
        registry._disabled_paths = frozenset(read_disabled(home))
        for root in list_places(workspace, home=home, roots=roots):
            if root.scope == "installed":
                registry._discover_installed(root)
            else:
                registry._discover(root)
        # Rules come last: the first of a name wins, so no rule file can replace a skill.
        rules, notes = read_rules(workspace)
        registry.diagnostics.extend(notes)
        for rule in rules:
            if registry.may_follow(rule, changed_rules):
                registry.add(rule)
        return registry

    def discover(self, roots: Iterable[Path | str]) -> list[SkillMetadata]:
        """Find the skills below `roots`, add them, and return them sorted by name. O(folders).

        A root that does not exist has no skills; a refused file gives a diagnostic.
        """
        skills = [skill for root in roots for skill in self._discover(Root(Path(root)))]
        return sorted(skills, key=lambda skill: skill.name)

    def add(self, skill: Skill) -> None:
        """Add a skill created in code or read separately; the first of a name wins.

        Raises:
            InvalidInput: Its name is not safe to display or to use in a path.
        """
        if reason := explain_unsafe_name(skill.name):
            raise InvalidInput(
                f"invalid skill name {skill.name[:80]!r}: {reason}", hint="use letters, digits and hyphens"
            )
        if self._register(skill.summary()):
            self._added[skill.name] = skill

    def get(self, name: str) -> Skill:
        """Return a skill with the present content of its file.

        Raises:
            NotFound: No skill has that name; the hint names the nearest.
            PermissionDenied: It contains code that is not trusted, or has changed since it was trusted.
            SkillRefused: Its file can no longer be read as a skill.
        """
        if name in self._added:
            return self._added[name].fresh()
        metadata = self._skills.get(name)
        if metadata is None:
            self._refuse(name)
        # Read before trust is checked: a file that is gone or broken is reported as that, not as untrusted code.
        skill = read_skill(metadata.path, source=metadata.source, scope=metadata.scope)
        if self._is_withheld(metadata):
            self._refuse_untrusted(metadata)
        return skill if metadata.file not in self._locked else skill.with_fields(name=name)

    @property
    def snapshots(self) -> SnapshotStore:
        """The store of snapshots: below bough's own folder, or in a temporary folder that the registry removes."""
        if self._snapshots is None:
            folder = Path(tempfile.mkdtemp(prefix="bough-snapshots-"))
            folder.chmod(0o755)  # mkdtemp makes it 0700, but a sandbox may run as another user
            weakref.finalize(self, remove_tree, folder)
            self._snapshots = SnapshotStore(folder)
        return self._snapshots

    def get_active(self, name: str, tree: str = "") -> tuple[Skill, SkillSnapshot | None]:
        """Return a skill as it was when the conversation activated it, with its snapshot.

        Args:
            tree: Digest of the snapshot; empty for the skill's present state.

        Raises:
            NotFound: No skill has that name.
            PermissionDenied: It is not, or no longer, trusted.
            Conflict: The snapshot is gone or no longer trusted, and the skill must be loaded again.
        """
        metadata = self._skills.get(name)
        snapshot = self.snapshots.find(tree)
        if metadata is None or snapshot is None or name in self._added:
            skill = self.get(name)
            return skill, self.snapshot(skill, tree)
        if not self._is_allowed(metadata, tree):
            self.get(name)  # raises a precise error if the skill is not trusted at all
            _refuse_changed(name)
        skill = read_skill(snapshot.folder / metadata.path.name, source=metadata.source, scope=metadata.scope)
        return skill.with_fields(name=name), snapshot

    def snapshot(self, skill: Skill, tree: str = "") -> SkillSnapshot | None:
        """Return the snapshot that a skill's scripts, resources and servers use; None for a flat file.

        Args:
            tree: Digest of the snapshot that the conversation already uses; empty for the folder's present state.

        Raises:
            PermissionDenied: The folder differs from what was trusted or installed.
            Conflict: The snapshot `tree` is gone, and the folder has changed since.
            StoreError: The snapshot cannot be written.
        """
        if skill.folder is None or (not tree and _is_text_only(skill.folder)):
            return None
        if tree and (existing := self.snapshots.find(tree)) is not None:
            return existing
        strict = skill.scope in ("project", "installed")
        snapshot = self.snapshots.take(Path(os.path.realpath(skill.folder)), allow_faults=not strict)
        if tree and snapshot.digest != tree:
            _refuse_changed(skill.name)
        metadata = self._skills.get(skill.name)
        if metadata is not None and strict and not self._is_allowed(metadata, snapshot.digest):
            self._refuse_untrusted(metadata)
        # The instructions were read before the copy was made: without this check, a model could follow the text of one
        # version and run the scripts of another.
        if skill.content_hash != _hash_file(snapshot.folder / skill.path.name if skill.path else snapshot.folder):
            raise Conflict(f"skill {skill.name!r} changed while it was being read", hint="try again")
        return snapshot

    def find_grant(self, skill: Skill, digest: str) -> SkillGrant | None:
        """Return the user's grant for a skill with this digest; None if missing."""
        if skill.scope == "installed" and skill.path is not None:
            metadata = self._skills.get(skill.name)
            locked = None if metadata is None else self._locked.get(metadata.file)
            return None if locked is None else SkillGrant(locked.digest, locked.hosts, locked.domains)
        if self._origin is None:
            return None
        metadata = self._skills.get(skill.name)
        grant = self._origin.find_grant(skill.summary() if metadata is None else metadata)
        return grant if grant is not None and digest and grant.digest == digest else None

    def metadata(self, name: str) -> SkillMetadata:
        """Return the tier 1 metadata of a skill.

        Raises:
            NotFound: No skill has that name.
            PermissionDenied: It contains code that is not trusted.
        """
        skill = self._skills.get(name)
        if skill is None:
            self._refuse(name)
        return skill

    def list_all(self) -> list[SkillMetadata]:
        """Return every skill, sorted by name."""
        return sorted(self._skills.values(), key=lambda skill: skill.name)

    def list_catalogued(self) -> list[SkillMetadata]:
        """Return the skills that are listed for a model, sorted by name; always-active skills are not among them."""
        return [skill for skill in self.list_all() if skill.catalogued]

    def always_active(self) -> list[Skill]:
        """Return the repository skills, which are active in every step, sorted by name. Reads their files."""
        return [self.get(skill.name) for skill in self.list_all() if skill.kind == "repository"]

    def may_follow(self, rule: Skill, changed_rules: Collection[str]) -> bool:
        """Whether a rule may be applied. One that changed while the conversation's tools ran must first be trusted.

        Args:
            changed_rules: Digests of the rule files that changed while tools of the conversation ran.
        """
        if rule.content_hash not in changed_rules:
            return True
        return self._origin is not None and self._origin.trusts_file(rule)

    def contents(self) -> tuple[Any, ...]:
        """Return a value that is equal for two registries of the same folders with the same contents. O(skills).

        Flat files, whose text is used without being loaded, are compared by their stamps; nothing is read.
        """
        in_code = {name: skill for name, skill in self._added.items() if skill.path is None}
        flat = [
            skill.file
            for name, skill in self._skills.items()
            if name not in in_code and not is_skill_file(skill.file.rpartition("/")[2])
        ]
        return (
            tuple(self._skills.values()),
            tuple((name, skill.content_hash) for name, skill in in_code.items()),
            tuple((file, _stamp(file)) for file in flat),
            tuple(self._locked.items()),
            tuple(self.withheld),
            tuple(self.disabled),
            tuple(self.diagnostics),
        )

    def search(self, query: str, limit: int = 5) -> list[SkillMetadata]:
        """Return the skills that match a query best, best first. The index is built on first use."""
        if self._search is None:
            self._search = SkillSearch(self.list_all())
        return self._search.search(query, limit)

    def __contains__(self, name: object) -> bool:
        return name in self._skills

    def __len__(self) -> int:
        return len(self._skills)

    def _refuse(self, name: str) -> NoReturn:
        for skill in self.withheld:
            if skill.name == name:
                self._refuse_untrusted(skill)
        raise NotFound(f"no skill named {name[:100]!r}", hint=suggest_nearest(name, tuple(sorted(self._skills))))

    def explain_refusal(self, skill: SkillMetadata) -> PermissionDenied:
        """Return the error of a skill that may not be used; it names the files that changed. O(bytes)."""
        if skill.scope == "installed":
            return PermissionDenied(
                f"installed skill {skill.name!r} has changed since it was installed{self._describe_change(skill)}",
                hint="review it, then run `bough skills lock`, or reinstall it with --replace",
            )
        return PermissionDenied(
            f"skill {skill.name!r} contains code that is not trusted in its current state"
            f"{self._describe_change(skill)}",
            hint="not trusted: review it, then run `bough skills trust` in the project",
        )

    def _refuse_untrusted(self, skill: SkillMetadata) -> NoReturn:
        raise self.explain_refusal(skill)

    def _describe_change(self, skill: SkillMetadata) -> str:
        """Return the changes since a skill was trusted, at most five files; empty if it was never trusted."""
        if (locked := self._locked.get(skill.file)) is not None:
            trusted_files = dict(locked.files)
        else:
            grant = self._origin.find_grant(skill) if self._origin is not None else None
            trusted_files = {} if grant is None else self.snapshots.list_files(grant.digest)
        if not trusted_files:
            return ""
        tree = read_skill_tree(skill.path)
        changes = [*list_differences(trusted_files, tree.files), *(fault.message for fault in tree.faults)]
        return f" ({'; '.join(changes[:_MAX_CHANGES])})" if changes else ""

    def _is_withheld(self, skill: SkillMetadata) -> bool:
        if skill.scope == "installed":
            return skill.file in self._locked and not self._is_allowed(skill, _digest_now(skill))
        return (
            skill.scope == "project"
            and self._origin is not None
            and contains_code(skill.path)
            and not self._is_allowed(skill, _digest_now(skill))
        )

    def _is_allowed(self, skill: SkillMetadata, digest: str) -> bool:
        """Whether this is the digest that was trusted or installed. A skill without code needs no trust."""
        if skill.scope == "installed":
            locked = self._locked.get(skill.file)
            return locked is None or locked.digest == digest
        if self._origin is None or skill.scope != "project":
            return True
        grant = self._origin.find_grant(skill)
        return (grant is not None and bool(digest) and grant.digest == digest) or not contains_code(skill.path)

    def _discover_installed(self, root: Root) -> None:
        """Add the skills in the lock file; folders that it does not name are not used."""
        if not root.path.is_dir():
            return
        try:
            locked = read_lock(root.path / NAME)
        except BoughError as error:
            if any(entry.is_dir() and not entry.name.startswith(".") for entry in root.path.iterdir()):
                note = Diagnostic("lock-unusable", "warning", error.message, None, error.hint, str(root.path / NAME))
                self.diagnostics.append(note)
            return
        for entry in locked:
            folder = Path(os.path.abspath(root.path / entry.folder))
            self._locked[str(find_skill_file(folder))] = entry
            # Not indexed: an index file for a single skill would save nothing.
            self._discover(Root(folder, "installed", within=folder), indexed=False)

    def _discover(self, root: Root, *, indexed: bool = True) -> list[SkillMetadata]:
        if not os.path.lexists(root.path):
            return []
        index = self._open_index(root) if indexed else None
        discovery = discover(root, index)
        if index is not None:
            index.save()
        self.diagnostics.extend(discovery.diagnostics)
        for skill in discovery.skills:
            locked = self._locked.get(skill.file)
            if root.scope == "installed" and locked is None:
                continue  # a skill inside an installed skill is not itself installed
            if locked is not None and locked.used_name != skill.name:
                skill = SkillMetadata(locked.used_name, *skill[1:])
            if skill.file in self._disabled_paths or (locked is not None and locked.disabled):
                self.disabled.append(skill)
            elif skill.scope == "project" and self._is_withheld(skill):
                self._withhold(skill)
            else:
                self._register(skill)
        return [skill for skill in discovery.skills if self._skills.get(skill.name) is skill]

    def _open_index(self, root: Root) -> SkillIndex | None:
        if self._index is None or not root.path.is_dir():
            return None
        digest = hashlib.sha256(os.fsencode(os.path.abspath(root.path))).hexdigest()[:16]
        return SkillIndex(self._index / f"skills-{digest}.index")

    def _register(self, skill: SkillMetadata) -> bool:
        first = self._skills.get(skill.name)
        if first is None:
            self._skills[skill.name] = skill
            self._search = None
            return True
        if first.file != skill.file:
            message = f"ignored: another skill named {skill.name!r} takes precedence: {first.path}"
            note = Diagnostic("duplicate-name", "warning", message, None, "rename one of them", skill.file)
            self.diagnostics.append(note)
        return False

    def _withhold(self, skill: SkillMetadata) -> None:
        self.withheld.append(skill)
        refusal = self.explain_refusal(skill)
        note = Diagnostic("untrusted", "warning", refusal.message, None, refusal.hint, str(skill.path))
        self.diagnostics.append(note)


@dataclass(frozen=True)
class _Origin:
    """The folder that a registry was opened in, and the trust that applies there."""

    workspace: Path
    trust: TrustStore

    def find_grant(self, skill: SkillMetadata) -> SkillGrant | None:
        place = self.workspace if skill.scope == "project" or not skill.source else Path(skill.source)
        try:
            return self.trust.find_grant(place, skill.path)
        except StoreError:  # an unreadable trust file trusts nothing; `bough skills trust` reports it
            return None

    def trusts_file(self, rule: Skill) -> bool:
        try:
            return self.trust.trusts_file(self.workspace, rule.name, rule.content_hash)
        except StoreError:
            return False


_MAX_CHANGES = 5


def _digest_now(skill: SkillMetadata) -> str:
    tree = read_skill_tree(skill.path)
    return "" if tree.faults else tree.digest


def _stamp(file: str) -> tuple[int, int, int] | None:
    try:
        info = os.stat(file)
    except OSError:
        return None
    return info.st_mtime_ns, info.st_size, info.st_ino


def _refuse_changed(name: str) -> NoReturn:
    raise Conflict(
        f"skill {name!r} has changed since it was loaded",
        hint="load it again with load_skill",
        details={"error_code": "SKILL_CHANGED"},
    )


def _is_text_only(folder: Path) -> bool:
    """Whether a skill has no files besides its instructions, so that no snapshot is needed."""
    try:
        with os.scandir(folder) as entries:
            return all(is_skill_file(entry.name) and entry.is_file() for entry in entries if entry.name not in EXCLUDED)
    except OSError:
        return True


def _hash_file(file: Path) -> str:
    data, _ = read_bounded(file)
    return hashlib.sha256(data or b"").hexdigest()
