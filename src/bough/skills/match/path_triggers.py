"""Path triggers: which skills are activated when a tool touches a file.

Source: OpenHands and the rule files of other clients (`globs`, `applyTo`, `paths`).
"""

from __future__ import annotations

import re
from collections.abc import Collection, Sequence
from importlib import import_module
from typing import Any

from bough.skills.model import Diagnostic, PathTrigger, Skill, SkillMetadata
from bough.skills.read.expressions import translate_glob


class PathIndex:
    """Matches paths against the patterns of many skills in one RE2 set, in time linear in the path's length.

    Args:
        skills: Skills without a `PathTrigger` are ignored.

    Attributes:
        diagnostics: Invalid patterns.
    """

    def __init__(self, skills: Sequence[Skill | SkillMetadata]) -> None:
        self.diagnostics: list[Diagnostic] = []
        self._names: list[str] = []
        sources: list[str] = []
        for skill in skills:
            for glob in skill.trigger.globs if isinstance(skill.trigger, PathTrigger) else ():
                source = translate_glob(glob)
                if source is None:
                    self.diagnostics.append(_make_glob_diagnostic(skill.name, glob))
                else:
                    self._names.append(skill.name)
                    sources.append(source)
        self._pattern_set = _compile(sources) if sources else None

    def match(self, path: str, active: Collection[str] = ()) -> list[str]:
        """Return the names of the skills whose patterns match, in the order given, without those in `active`.

        Args:
            path: Relative to the workspace, with forward slashes.
        """
        normalized = re.sub(r"^(\./)+", "", path.replace("\\", "/"))
        if self._pattern_set is None or not normalized or normalized.startswith(("/", "../")):
            return []
        pattern_numbers = sorted(self._pattern_set.Match(normalized) or ())
        return list(dict.fromkeys(name for number in pattern_numbers if (name := self._names[number]) not in active))


def _compile(sources: list[str]) -> Any:
    """Return an RE2 set of regular expressions that match whole paths."""
    re2: Any = import_module("re2")  # it has no type hints
    options = re2.Options()
    options.log_errors = False
    options.dot_nl = True  # names of files may contain line feeds
    pattern_set = re2.Set.FullMatchSet(options)
    for source in sources:
        try:
            pattern_set.Add(source)
        except re2.error:
            pattern_set.Add(r"[^\s\S]")  # matches nothing, so that patterns and `_names` have the same indices
    pattern_set.Compile()
    return pattern_set


def _make_glob_diagnostic(name: str, glob: str) -> Diagnostic:
    return Diagnostic("trigger-bad-glob", "warning", f"skill {name!r} has an invalid path pattern: {glob[:80]}")
