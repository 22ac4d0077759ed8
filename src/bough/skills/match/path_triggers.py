"""Path triggers: which skills a touched file activates, and the patterns that say so.

Source: seed 002 and the rule files of other clients (`globs`, `applyTo`, `paths`).
"""

from __future__ import annotations

import re
from collections.abc import Collection, Sequence
from importlib import import_module
from typing import Any

from bough.skills.model import Diagnostic, PathTrigger, Skill, SkillMetadata
from bough.skills.read.expressions import pattern_of


class PathIndex:
    """Matches paths against the patterns of many skills; all of them are one RE2 set, so time is linear in the path.

    Args:
        skills: Those without a `PathTrigger` are passed over.

    Attributes:
        diagnostics: Patterns that cannot be used.
    """

    def __init__(self, skills: Sequence[Skill | SkillMetadata]) -> None:
        self.diagnostics: list[Diagnostic] = []
        self._names: list[str] = []
        sources: list[str] = []
        for skill in skills:
            for glob in skill.trigger.globs if isinstance(skill.trigger, PathTrigger) else ():
                if (source := pattern_of(glob)) is None:
                    self.diagnostics.append(_bad_glob(skill.name, glob))
                else:
                    self._names.append(skill.name)
                    sources.append(source)
        self._set = _compiled(sources) if sources else None

    def match(self, path: str, active: Collection[str] = ()) -> list[str]:
        """Return the names of the skills whose patterns match, those in `active` left out, in their given order.

        Args:
            path: Relative to the workspace, with forward slashes.
        """
        clean = re.sub(r"^(\./)+", "", path.replace("\\", "/"))
        if self._set is None or not clean or clean.startswith(("/", "../")):
            return []
        hits = sorted(self._set.Match(clean) or ())
        return list(dict.fromkeys(name for i in hits if (name := self._names[i]) not in active))


def _compiled(sources: list[str]) -> Any:
    re2: Any = import_module("re2")  # it carries no types
    options = re2.Options()
    options.log_errors = False
    options.dot_nl = True
    several = re2.Set.FullMatchSet(options)
    for source in sources:
        try:
            several.Add(source)
        except re2.error:
            several.Add(r"[^\s\S]")  # a class with a bad range matches nothing; its place keeps the count
    several.Compile()
    return several


def _bad_glob(name: str, glob: str) -> Diagnostic:
    return Diagnostic(
        "trigger-bad-glob", "warning", f"the skill {name!r} has a pattern that cannot be used: {glob[:80]}"
    )
