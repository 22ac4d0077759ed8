"""Rule files of other clients, read as skills: always active, or active for the files that match their patterns.

A rule's name is its path in the project, so that it cannot hide another rule or a skill.

Source: OpenHands (third-party support); the documentation of Cursor, Copilot, Windsurf, Cline, Claude Code, Gemini CLI.
"""

from __future__ import annotations

import os
import time
from collections import deque
from collections.abc import Iterator
from pathlib import Path

from bough.skills.find.discover import WalkBounds, describe_bound
from bough.skills.find.places import project_root
from bough.skills.model import Diagnostic, KeywordTrigger, PathTrigger, Skill, Trigger
from bough.skills.read.fields import means_true, read_globs
from bough.skills.read.parse import read_file

_FILES = (
    "AGENTS.md", "AGENT.md", "agents.md", "agent.md", "CLAUDE.md", "GEMINI.md", "CONVENTIONS.md", ".cursorrules",
    ".windsurfrules", ".clinerules", ".github/copilot-instructions.md",
)  # fmt: skip
_NESTED = ("AGENTS.md", "agents.md", "AGENT.md", "agent.md", "CLAUDE.md", "GEMINI.md")
"""Rules that apply to the folder they are in, as in the clients that define them."""

_FOLDERS = (
    (".cursor/rules", ".mdc"), (".github/instructions", ".instructions.md"), (".clinerules", ".md"),
    (".windsurf/rules", ".md"), (".claude/rules", ".md"),
)  # fmt: skip
"""(folder of rules, ending of its files); also searched at any depth."""

_FOLDER_BOUNDS = WalkBounds(10_000, 5.0)
"""Bounds of the search in one folder of rules."""

_ALWAYS = frozenset({"*", "**", "**/*"})
_IRRELEVANT = frozenset({"frontmatter-missing", "description-missing", "trigger-both"})
"""Diagnostics about what skills need and rules do not."""

_SKIPPED = frozenset({"node_modules", "__pycache__", "venv"})


def read_rules(workspace: Path) -> tuple[list[Skill], list[Diagnostic]]:
    """Return the project's rule files as skills, and diagnostics. O(names), with the bounds of discovery.

    Rules in folders from the project root down to the workspace are always active; those further down are active for
    the files there. A file with several links is read once; links that leave the project are not followed.
    """
    top = project_root(workspace)
    notes: list[Diagnostic] = []
    rules = [_read(file, real, top, below, notes) for file, real, below in _find_rule_files(top, workspace, notes)]
    # Without the texts read here: a rule is read again when it is used, and may have changed until then.
    return [skill.fresh() for skill in rules if skill is not None], notes


def find_rule_files(workspace: Path) -> dict[str, Path]:
    """Return the path of each rule file, with links resolved, by the name of its rule. O(names), like `read_rules`."""
    top = project_root(workspace)
    return {file.relative_to(top).as_posix(): real for file, real, _ in _find_rule_files(top, workspace, [])}


def _find_rule_files(top: Path, workspace: Path, notes: list[Diagnostic]) -> Iterator[tuple[Path, Path, str]]:
    """Yield (file, its path without links, folder it applies to) of every rule file of the project, each file once."""
    visited: set[str] = set()
    within = os.path.realpath(top) + os.sep
    for file, below in _list_candidates(top, Path(os.path.abspath(workspace)), notes):
        real = os.path.realpath(file)
        if real in visited or not os.path.isfile(real):
            continue
        visited.add(real)
        if not real.startswith(within):
            notes.append(Diagnostic("link-out", "warning", "not read: the link leaves the project", path=str(file)))
            continue
        yield file, Path(real), below


def _list_candidates(top: Path, workspace: Path, notes: list[Diagnostic]) -> Iterator[tuple[Path, str]]:
    """Yield (file, folder it applies to) of every possible rule file; the folder is empty for the whole project."""
    top_names = set(_list_names(top))  # one listing instead of a `stat` for each possible name
    for name in _FILES:
        if name.partition("/")[0] in top_names:
            yield top / name, ""
    for folder, ending in _FOLDERS:
        if folder.partition("/")[0] in top_names:
            for inside, names in _walk(top / folder, _FOLDER_BOUNDS, notes):
                yield from ((top / folder / inside / name, "") for name in sorted(names) if name.endswith(ending))
    for folder, names in _walk(top, WalkBounds(), notes):
        for name in _NESTED:
            if folder and name in names:
                yield top / folder / name, "" if workspace.is_relative_to(top / folder) else folder


def _list_names(folder: Path) -> list[str]:
    try:
        return os.listdir(folder)
    except OSError:
        return []


def _walk(top: Path, limit: WalkBounds, notes: list[Diagnostic]) -> Iterator[tuple[str, set[str]]]:
    """Yield (path below `top`, names of its files) of `top` and the folders in it, except links and hidden folders."""
    deadline = time.monotonic() + limit.seconds
    waiting = deque([""])
    count = 0
    while waiting:
        if count > limit.names or time.monotonic() > deadline:
            notes.append(describe_bound(count > limit.names, limit, str(top), waiting[0], len(waiting)))
            return
        inside = waiting.popleft()
        files, folders = _list_folder(top / inside)
        count += len(files) + len(folders)
        yield inside, files
        waiting += [f"{inside}/{name}" if inside else name for name in sorted(folders)]


def _list_folder(folder: Path) -> tuple[set[str], list[str]]:
    files: set[str] = set()
    folders: list[str] = []
    try:
        with os.scandir(folder) as entries:
            for entry in entries:
                if not entry.is_dir(follow_symlinks=False):
                    files.add(entry.name)
                elif not entry.name.startswith(".") and entry.name not in _SKIPPED:
                    folders.append(entry.name)
    except OSError:  # an unreadable folder has no rules
        return set(), []
    return files, folders


def _read(file: Path, real: Path, top: Path, below: str, notes: list[Diagnostic]) -> Skill | None:
    reading = read_file(real, source=str(top), scope="project")
    diagnostics = tuple(
        note for note in reading.diagnostics if note.code not in _IRRELEVANT and not note.code.startswith("name-")
    )
    notes += diagnostics
    if reading.skill is None:
        return None
    name = file.relative_to(top).as_posix()
    trigger = _choose_trigger(file, reading.skill, below)
    # Rules are followed without being trusted, so they cannot bring servers or hooks.
    return reading.skill.with_fields(
        name=name, trigger=trigger, path=real, inputs=(), mcp_tools={}, hooks=False, diagnostics=diagnostics
    )


def _choose_trigger(file: Path, skill: Skill, below: str) -> Trigger | None:
    """Return None for a rule that is always active; a keyword trigger without words for one loaded on request only."""
    if below:
        return PathTrigger((f"{below}/**",))
    fields = skill.frontmatter
    # Windsurf's: always_on, glob, model_decision or manual.
    activation = str(fields.get("trigger", "")).strip().lower() if ".windsurf" in file.parts else ""
    if activation in ("model_decision", "manual"):
        return KeywordTrigger(())
    globs = read_globs(fields.get("globs", fields.get("applyTo", fields.get("paths"))))
    if means_true(fields.get("alwaysApply")) or _ALWAYS.intersection(globs):
        return None
    if globs:
        return PathTrigger(globs)
    return KeywordTrigger(()) if file.suffix == ".mdc" or activation == "glob" else None
