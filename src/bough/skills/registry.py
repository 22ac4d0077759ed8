"""The skills that a conversation can use: discovered once, each read in full when it is needed.

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
from typing import NoReturn

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
    """Skills by name. Of skills with the same name, the first one found is used; each of the others gives a diagnostic.

    Reading is safe for concurrent use, discovery is not.

    Attributes:
        diagnostics: Problems found during discovery, including refused and duplicate files.
        withheld: Skills of a project that contain code and are not trusted.
        disabled: Skills that the user disabled; no other attribute or method returns them.
    """

    def __init__(self, *, index: Path | None = None, home: Path | None = None) -> None:
        """Create an empty registry.

        Args:
            index: A folder for the index of files that were read; it makes the next discovery faster.
            home: bough's own folder, with grants and snapshots; None: no grants, and snapshots in a temporary folder.
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
            trust: The store of trusted skills; None: the one in `home`.
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
        # Rules are added last: the first skill of a name is used, so no rule file can replace a skill.
        rules, notes = read_rules(workspace)
        registry.diagnostics.extend(notes)
        for rule in rules:
            if registry.may_follow(rule, changed_rules):
                registry.add(rule)
        return registry

    def discover(self, roots: Iterable[Path | str]) -> list[SkillMetadata]:
        """Find the skills below `roots`, add them, and return the added ones sorted by name. O(folders).

        A root that does not exist has no skills; a refused file gives a diagnostic.
        """
        skills = [skill for root in roots for skill in self._discover(Root(Path(root)))]
        return sorted(skills, key=lambda skill: skill.name)

    def add(self, skill: Skill) -> None:
        """Add a skill created in code or read separately; ignored if another skill already has its name.

        Raises:
            InvalidInput: The skill's name is not safe to display or to use in a path.
        """
        if reason := explain_unsafe_name(skill.name):
            raise InvalidInput(
                f"invalid skill name {skill.name[:80]!r}: {reason}", hint="use letters, digits and hyphens"
            )
        if self._register(skill.summary()):
            self._added[skill.name] = skill

    def get(self, name: str) -> Skill:
        """Return a skill with the current content of its file.

        Raises:
            NotFound: No skill has that name; the hint suggests a similar name.
            PermissionDenied: The skill contains code that is not trusted, or has changed since it was trusted.
            SkillRefused: Its file can no longer be read as a skill.
        """
        if name in self._added:
            return self._added[name].fresh()
        metadata = self._skills.get(name)
        if metadata is None:
            self._refuse_name(name)
        # Read before trust is checked: a missing or broken file must not be reported as untrusted code.
        skill = read_skill(metadata.path, source=metadata.source, scope=metadata.scope)
        if self._is_withheld(metadata):
            self._refuse_untrusted(metadata)
        # An installed skill may have an alias, which its file does not contain.
        return skill.with_fields(name=name) if metadata.file in self._locked else skill

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
            tree: Digest of the snapshot; empty for the skill's current state.

        Raises:
            NotFound: No skill has that name.
            PermissionDenied: The skill is not trusted, or is no longer trusted.
            Conflict: The snapshot was removed or is no longer trusted; the skill must be loaded again.
        """
        metadata = self._skills.get(name)
        snapshot = self.snapshots.find(tree)
        if metadata is None or snapshot is None or name in self._added:
            skill = self.get(name)
            return skill, self.snapshot(skill, tree)
        if not self._is_allowed(metadata, tree):
            self.get(name)  # raises `PermissionDenied` if the skill is not trusted at all
            _refuse_changed(name)
        skill = read_skill(snapshot.folder / metadata.path.name, source=metadata.source, scope=metadata.scope)
        return skill.with_fields(name=name), snapshot

    def snapshot(self, skill: Skill, tree: str = "") -> SkillSnapshot | None:
        """Return the snapshot that a skill's scripts, resources and servers use; None for a skill without files.

        Args:
            tree: Digest of the snapshot that the conversation already uses; empty for the folder's current state.

        Raises:
            PermissionDenied: The folder differs from what was trusted or installed.
            Conflict: The snapshot `tree` was removed, and the folder has changed since.
            StoreError: The snapshot cannot be written.
        """
        if skill.folder is None or (not tree and _is_text_only(skill.folder)):
            return None
        if tree and (existing := self.snapshots.find(tree)) is not None:
            return existing
        needs_grant = skill.scope in ("project", "installed")
        snapshot = self.snapshots.take(Path(os.path.realpath(skill.folder)), allow_faults=not needs_grant)
        if tree and snapshot.digest != tree:
            _refuse_changed(skill.name)
        metadata = self._skills.get(skill.name)
        if metadata is not None and needs_grant and not self._is_allowed(metadata, snapshot.digest):
            self._refuse_untrusted(metadata)
        # The instructions were read before the copy was made: without this check, a model could follow the text of one
        # version and run the scripts of another.
        copied_file = snapshot.folder / skill.path.name if skill.path else snapshot.folder
        if snapshot.faults and not copied_file.is_file():
            fault = snapshot.faults[0]
            raise PermissionDenied(f"skill {skill.name!r} cannot be used: {fault.message}", hint=fault.fix)
        if skill.content_hash != _hash_file(copied_file):
            raise Conflict(f"skill {skill.name!r} changed while it was being read", hint="try again")
        return snapshot

    def find_grant(self, skill: Skill, digest: str) -> SkillGrant | None:
        """Return the user's grant for a skill in the state that `digest` identifies; None if there is no grant."""
        if skill.scope == "installed" and skill.path is not None:
            metadata = self._skills.get(skill.name)
            lock_entry = None if metadata is None else self._locked.get(metadata.file)
            return None if lock_entry is None else SkillGrant(lock_entry.digest, lock_entry.hosts, lock_entry.domains)
        if self._origin is None:
            return None
        metadata = self._skills.get(skill.name)
        grant = self._origin.find_grant(skill.summary() if metadata is None else metadata)
        if grant is None or not digest or grant.digest != digest:
            return None
        return grant

    def metadata(self, name: str) -> SkillMetadata:
        """Return the tier 1 metadata of a skill.

        Raises:
            NotFound: No skill has that name.
            PermissionDenied: The skill contains code that is not trusted.
        """
        skill = self._skills.get(name)
        if skill is None:
            self._refuse_name(name)
        return skill

    def list_all(self) -> list[SkillMetadata]:
        """Return every skill, sorted by name."""
        return sorted(self._skills.values(), key=lambda skill: skill.name)

    def list_catalogued(self) -> list[SkillMetadata]:
        """Return the skills that are listed for a model, sorted by name; without those that are always active."""
        return [skill for skill in self.list_all() if skill.catalogued]

    def always_active(self) -> list[Skill]:
        """Return the repository skills, which are active in every step, sorted by name. Reads their files."""
        return [self.get(skill.name) for skill in self.list_all() if skill.kind == "repository"]

    def may_follow(self, rule: Skill, changed_rules: Collection[str]) -> bool:
        """Whether a rule may be applied. A rule that changed while the conversation's tools ran must be trusted first.

        Args:
            changed_rules: Digests of the rule files that changed while tools of the conversation ran.
        """
        if rule.content_hash not in changed_rules:
            return True
        return self._origin is not None and self._origin.trusts_file(rule)

    def contents(self) -> tuple[object, ...]:
        """Return a value that is equal for two registries of the same folders with the same files. O(skills).

        Reads no file. Flat files are compared by mtime, size and inode: their text is used without being loaded.
        """
        added_skills = {name: skill for name, skill in self._added.items() if skill.path is None}
        flat_files = [
            skill.file
            for name, skill in self._skills.items()
            if name not in added_skills and not is_skill_file(skill.file.rpartition("/")[2])
        ]
        return (
            tuple(self._skills.values()),
            tuple((name, skill.content_hash) for name, skill in added_skills.items()),
            tuple((file, _read_stamp(file)) for file in flat_files),
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

    def _refuse_name(self, name: str) -> NoReturn:
        """Raise the error for a name that no usable skill has: `PermissionDenied` if withheld, else `NotFound`."""
        for withheld_skill in self.withheld:
            if withheld_skill.name == name:
                self._refuse_untrusted(withheld_skill)
        raise NotFound(f"no skill named {name[:100]!r}", hint=suggest_nearest(name, tuple(sorted(self._skills))))

    def explain_refusal(self, skill: SkillMetadata) -> PermissionDenied:
        """Return the error for a skill that may not be used; its message names the changed files. O(bytes)."""
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
        """Return up to five changes since a skill was trusted, as ` (…; …)`; empty if it was never trusted."""
        if (lock_entry := self._locked.get(skill.file)) is not None:
            trusted_files = dict(lock_entry.files)
        else:
            grant = self._origin.find_grant(skill) if self._origin is not None else None
            trusted_files = {} if grant is None else self.snapshots.list_files(grant.digest)
        if not trusted_files:
            return ""
        tree = read_skill_tree(skill.path)
        changes = [*list_differences(trusted_files, tree.files), *(fault.message for fault in tree.faults)]
        return f" ({'; '.join(changes[:_MAX_CHANGES])})" if changes else ""

    def _is_withheld(self, skill: SkillMetadata) -> bool:
        """Whether a skill may not be used in its current state. O(bytes) for a skill with code."""
        if skill.scope == "installed":
            return skill.file in self._locked and not self._is_allowed(skill, _compute_current_digest(skill))
        return (
            skill.scope == "project"
            and self._origin is not None
            and contains_code(skill.path)
            and not self._is_allowed(skill, _compute_current_digest(skill))
        )

    def _is_allowed(self, skill: SkillMetadata, digest: str) -> bool:
        """Whether a skill may be used in the state that `digest` identifies: trusted, installed, or without code."""
        if skill.scope == "installed":
            lock_entry = self._locked.get(skill.file)
            return lock_entry is None or lock_entry.digest == digest
        if self._origin is None or skill.scope != "project":
            return True
        grant = self._origin.find_grant(skill)
        if grant is not None and digest and grant.digest == digest:
            return True
        return not contains_code(skill.path)

    def _discover_installed(self, root: Root) -> None:
        """Add the skills that the lock file names; other folders are ignored."""
        if not root.path.is_dir():
            return
        try:
            lock_entries = read_lock(root.path / NAME)
        except BoughError as error:
            if any(entry.is_dir() and not entry.name.startswith(".") for entry in root.path.iterdir()):
                note = Diagnostic("lock-unusable", "warning", error.message, None, error.hint, str(root.path / NAME))
                self.diagnostics.append(note)
            return
        for entry in lock_entries:
            folder = Path(os.path.abspath(root.path / entry.folder))
            self._locked[str(find_skill_file(folder))] = entry
            # Not indexed: an index of a single file is not faster than reading that file.
            self._discover(Root(folder, "installed", within=folder), indexed=False)

    def _discover(self, root: Root, *, indexed: bool = True) -> list[SkillMetadata]:
        """Add the skills below a root, unless they are disabled or withheld; return the added ones."""
        if not os.path.lexists(root.path):
            return []
        index = self._open_index(root) if indexed else None
        discovery = discover(root, index)
        if index is not None:
            index.save()
        self.diagnostics.extend(discovery.diagnostics)
        for skill in discovery.skills:
            lock_entry = self._locked.get(skill.file)
            if root.scope == "installed" and lock_entry is None:
                continue  # a skill in the folder of an installed skill is not installed itself
            if lock_entry is not None and lock_entry.used_name != skill.name:
                skill = SkillMetadata(lock_entry.used_name, *skill[1:])
            if skill.file in self._disabled_paths or (lock_entry is not None and lock_entry.disabled):
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
        """Add a skill and return True; if its name is taken, add a diagnostic and return False."""
        existing = self._skills.get(skill.name)
        if existing is None:
            self._skills[skill.name] = skill
            self._search = None
            return True
        if existing.file != skill.file:
            message = f"ignored: another skill named {skill.name!r} takes precedence: {existing.path}"
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
    """The working folder of a registry, and the store of trusted skills."""

    workspace: Path
    trust: TrustStore

    def find_grant(self, skill: SkillMetadata) -> SkillGrant | None:
        """Return the grant for a skill: in the project, or in the folder below which a skill of the user was found."""
        project = self.workspace if skill.scope == "project" or not skill.source else Path(skill.source)
        try:
            return self.trust.find_grant(project, skill.path)
        except StoreError:  # an unreadable file grants nothing; `bough skills trust` reports the error
            return None

    def trusts_file(self, rule: Skill) -> bool:
        try:
            return self.trust.trusts_file(self.workspace, rule.name, rule.content_hash)
        except StoreError:
            return False


_MAX_CHANGES = 5


def _compute_current_digest(skill: SkillMetadata) -> str:
    """Return the digest of a skill's current files; empty if they have faults."""
    tree = read_skill_tree(skill.path)
    return "" if tree.faults else tree.digest


def _read_stamp(file: str) -> tuple[int, int, int] | None:
    """Return mtime, size and inode of a file; None if it does not exist."""
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
    """Whether a skill has no files besides its instructions, so that it needs no snapshot."""
    try:
        with os.scandir(folder) as entries:
            relevant_entries = [entry for entry in entries if entry.name not in EXCLUDED]
            return all(is_skill_file(entry.name) and entry.is_file() for entry in relevant_entries)
    except OSError:
        return True


def _hash_file(file: Path) -> str:
    data, _ = read_bounded(file)
    return hashlib.sha256(data or b"").hexdigest()
