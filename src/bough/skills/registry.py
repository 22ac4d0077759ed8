"""The skills one conversation can use: found once, each read in full when it is asked for.

Source: seed 004 (`SkillRegistry.discover`, `get`, `list_all`).
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from pathlib import Path
from typing import NoReturn

from bough.errors import InvalidInput, NotFound, PermissionDenied, StoreError
from bough.skills.find.discover import Root, discover
from bough.skills.find.index import SkillIndex
from bough.skills.find.places import places
from bough.skills.find.rules import read_rules
from bough.skills.find.search import SkillSearch
from bough.skills.model import Diagnostic, Skill, SkillMetadata
from bough.skills.read.fields import unsafe_name
from bough.skills.read.parse import read_skill
from bough.skills.read.resources import nearest
from bough.skills.trust.trust import TrustStore, carries_code


class SkillRegistry:
    """Skills by name. The first one found of a name wins; later ones are diagnosed.

    Not safe for concurrent discovery; reading is.

    Attributes:
        diagnostics: What was noticed while discovering, refused and duplicate files included.
        withheld: Skills of a project that carry code and are not trusted yet.
    """

    def __init__(self, *, index: Path | None = None) -> None:
        """Start empty.

        Args:
            index: A folder to keep an index of what was read in, so that the next discovery is quick.
        """
        self.diagnostics: list[Diagnostic] = []
        self.withheld: list[SkillMetadata] = []
        self._index = index
        self._known: dict[str, SkillMetadata] = {}
        self._made: dict[str, Skill] = {}
        self._search: SkillSearch | None = None
        self._may_run: Callable[[SkillMetadata], bool] | None = None

    @classmethod
    def open(
        cls, workspace: Path, *, home: Path, roots: Sequence[Path] = (), trust: TrustStore | None = None
    ) -> SkillRegistry:
        """Return a registry of everything that applies in a working folder.

        Args:
            workspace: The working folder; its project's folders are searched up to the git root.
            home: bough's own folder (`Settings.home`): user skills, installed ones, trust and the index.
            roots: Explicitly configured folders; their skills win and are trusted.
            trust: Which projects are trusted; None: the store in `home`.
        """
        registry = cls(index=home / "cache")
        store = trust or TrustStore(home)
        registry._may_run = partial(_may_run, workspace=workspace, trust=store)
        for root in places(workspace, home=home, roots=roots):
            registry._discover(root)
        rules, notes = read_rules(workspace)
        registry.diagnostics.extend(notes)
        for rule in rules:
            registry.add(rule)
        return registry

    def discover(self, roots: Iterable[Path | str]) -> list[SkillMetadata]:
        """Find the skills under `roots`, add them, and return them in order of their names. O(folders).

        A root that does not exist holds nothing; a file that is refused becomes a diagnostic.
        """
        found = [skill for root in roots for skill in self._discover(Root(Path(root)))]
        return sorted(found, key=lambda skill: skill.name)

    def add(self, skill: Skill) -> None:
        """Add a skill made in code, or one read by itself; the first of a name wins.

        Raises:
            InvalidInput: Its name is none that can be shown and listed safely.
        """
        if reason := unsafe_name(skill.name):
            raise InvalidInput(
                f"a skill cannot be called {skill.name[:80]!r}: {reason}", hint="letters, digits, hyphens"
            )
        if self._enter(skill.summary()):
            self._made[skill.name] = skill

    def get(self, name: str) -> Skill:
        """Return a skill as its file is now.

        Raises:
            NotFound: There is none of that name; the hint names the nearest.
            PermissionDenied: It carries code and its project is not trusted, or it has changed since it was.
            SkillRefused: Its file can no longer be read as a skill.
        """
        if name in self._made:
            return self._made[name].fresh()
        found = self._known.get(name)
        if found is None:
            self._refuse(name)
        if self._is_withheld(found):
            self._refuse_untrusted(name)
        return read_skill(found.path, source=found.source, scope=found.scope)

    def metadata(self, name: str) -> SkillMetadata:
        """Return what tier 1 knows of a skill.

        Raises:
            NotFound: There is none of that name.
            PermissionDenied: It carries code and its project is not trusted.
        """
        found = self._known.get(name)
        if found is None:
            self._refuse(name)
        return found

    def list_all(self) -> list[SkillMetadata]:
        """Every skill, sorted by name."""
        return sorted(self._known.values(), key=lambda skill: skill.name)

    def catalogued(self) -> list[SkillMetadata]:
        """The skills that a model is shown and may load: what is always active needs no asking for. Sorted by name."""
        return [skill for skill in self.list_all() if skill.catalogued]

    def always_active(self) -> list[Skill]:
        """The repository skills: those that hold at every step. Sorted by name; their files are read."""
        return [self.get(skill.name) for skill in self.list_all() if skill.kind == "repository"]

    def search(self, query: str, limit: int = 5) -> list[SkillMetadata]:
        """Return the skills that fit a query best, best first; the index is built at first use."""
        if self._search is None:
            self._search = SkillSearch(self.list_all())
        return self._search.search(query, limit)

    def __contains__(self, name: object) -> bool:
        return name in self._known

    def __len__(self) -> int:
        return len(self._known)

    def _refuse(self, name: str) -> NoReturn:
        if any(skill.name == name for skill in self.withheld):
            self._refuse_untrusted(name)
        raise NotFound(f"no skill is called {name[:100]!r}", hint=nearest(name, tuple(sorted(self._known))))

    def _refuse_untrusted(self, name: str) -> NoReturn:
        raise PermissionDenied(
            f"the skill {name!r} carries code and its project is not trusted with it as it is now",
            hint="look at it, then run `bough skills trust` in the project",
        )

    def _is_withheld(self, skill: SkillMetadata) -> bool:
        return skill.scope == "project" and self._may_run is not None and not self._may_run(skill)

    def _discover(self, root: Root) -> list[SkillMetadata]:
        index = self._index_of(root)
        found = discover(root, index)
        if index is not None:
            index.save()
        self.diagnostics.extend(found.diagnostics)
        for skill in found.skills:
            if self._is_withheld(skill):
                self._withhold(skill)
            else:
                self._enter(skill)
        return [skill for skill in found.skills if self._known.get(skill.name) is skill]

    def _index_of(self, root: Root) -> SkillIndex | None:
        if self._index is None or not root.path.is_dir():
            return None
        digest = hashlib.sha256(os.fsencode(os.path.abspath(root.path))).hexdigest()[:16]
        return SkillIndex(self._index / f"skills-{digest}.index")

    def _enter(self, skill: SkillMetadata) -> bool:
        first = self._known.get(skill.name)
        if first is None:
            self._known[skill.name] = skill
            self._search = None
            return True
        if first.file != skill.file:
            message = f"another skill is called {skill.name!r} and wins: {first.path}"
            note = Diagnostic("duplicate-name", "warning", message, None, "rename one of them", skill.file)
            self.diagnostics.append(note)
        return False

    def _withhold(self, skill: SkillMetadata) -> None:
        self.withheld.append(skill)
        message = f"the skill {skill.name!r} carries code and its project is not trusted; it is not used"
        note = Diagnostic(
            "untrusted", "warning", message, None, "look at it, then `bough skills trust`", str(skill.path)
        )
        self.diagnostics.append(note)


def _may_run(skill: SkillMetadata, *, workspace: Path, trust: TrustStore) -> bool:
    if not carries_code(skill.path):
        return True
    try:
        return trust.is_trusted_skill(workspace, skill.path)
    except StoreError:  # a trust file that cannot be read trusts nothing; whoever trusts anew is told of it
        return False
