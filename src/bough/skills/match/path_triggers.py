"""Path triggers: which skills a touched file activates, and the patterns that say so.

Source: seed 002 and the rule files of other clients (`globs`, `applyTo`, `paths`).
"""

from __future__ import annotations

import re
from collections.abc import Collection, Sequence
from importlib import import_module
from typing import Any

from bough.skills.model import Diagnostic, PathTrigger, Skill, SkillMetadata

_MAX_PATTERN = 1_000
_MAX_BRACES = 200


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


def pattern_of(glob: str) -> str | None:
    """Return the regular expression of a glob; None when it cannot be one.

    `*` and `?` stay within a folder, `**` does not, `{a,b}` is either, `[…]` a class. A pattern without a slash
    matches in every folder, one with a trailing slash everything below.
    """
    glob = glob.strip().removeprefix("./")
    if not glob or len(glob) > _MAX_PATTERN or "\0" in glob:
        return None
    if glob.endswith("/"):
        glob += "**"
    if "/" not in glob and not glob.startswith("**"):
        glob = f"**/{glob}"
    variants = _braces(glob.removeprefix("/"))
    return None if variants is None else "|".join(f"(?:{_regex(each)})" for each in variants)


def _braces(glob: str) -> list[str] | None:
    """The patterns without braces that a pattern with braces stands for; None when there are too many."""
    done: list[str] = []
    waiting = [glob]
    while waiting:
        each = waiting.pop(0)
        match = re.search(r"\{([^{}]*,[^{}]*)\}", each)
        if match is None:
            done.append(each)
        else:
            waiting += [each[: match.start()] + part + each[match.end() :] for part in match[1].split(",")]
        if len(done) + len(waiting) > _MAX_BRACES:
            return None
    return done


def _regex(glob: str) -> str:
    out, i = "", 0
    while i < len(glob):
        if match := re.compile(r"\*\*/|/\*\*$|\*+|\?|\[[!^]?\]?[^\]/]+\]").match(glob, i):
            out += _token(match[0])
            i = match.end()
        else:
            out += re.escape(glob[i])
            i += 1
    return out


def _token(token: str) -> str:
    match token:
        case "**/":
            return "(?:.*/)?"
        case "/**":
            return "/.*"
        case "**":
            return ".*"
        case "?":
            return "[^/]"
        case _ if token.startswith("["):
            inside = token[1:-1].replace("\\", "\\\\").replace("[", "\\[")
            return f"[^{inside[1:]}/]" if inside[0] in "!^" else f"[{inside}]"
        case _:
            return "[^/]*"


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
