"""Rule files of other clients, read as skills that are always active, or active for files that match patterns.

A rule's name is its path in the project, so it cannot be the name of another rule or of a skill.

Source: OpenHands (third-party support); the documentation of Cursor, Copilot, Windsurf, Cline, Claude Code, Gemini CLI.
"""

from __future__ import annotations

import os
import time
from collections import deque
from collections.abc import Iterator
from pathlib import Path

from bough.skills.find.discover import WalkLimits, describe_limit
from bough.skills.find.places import project_root
from bough.skills.model import Diagnostic, KeywordTrigger, PathTrigger, Skill, Trigger
from bough.skills.read.fields import means_true, read_globs
from bough.skills.read.parse import read_file

_FILES = (
    "AGENTS.md", "AGENT.md", "agents.md", "agent.md", "CLAUDE.md", "GEMINI.md", "CONVENTIONS.md", ".cursorrules",
    ".windsurfrules", ".clinerules", ".github/copilot-instructions.md",
)  # fmt: skip
_NESTED_FILES = ("AGENTS.md", "agents.md", "AGENT.md", "agent.md", "CLAUDE.md", "GEMINI.md")
"""Files that may be in any folder. Their rules apply to that folder, as in the clients that define them."""

_FOLDERS = (
    (".cursor/rules", ".mdc"), (".github/instructions", ".instructions.md"), (".clinerules", ".md"),
    (".windsurf/rules", ".md"), (".claude/rules", ".md"),
)  # fmt: skip
"""(folder of rules, ending of its files). Their subfolders are searched at any depth."""

_FOLDER_LIMITS = WalkLimits(10_000, 5.0)
"""Limits of the search in each folder of rules."""

_MATCH_ALL = frozenset({"*", "**", "**/*"})
_SKILL_ONLY_DIAGNOSTICS = frozenset({"frontmatter-missing", "description-missing", "trigger-both"})
"""Codes of diagnostics that do not apply to rules."""

_SKIPPED = frozenset({"node_modules", "__pycache__", "venv"})


def read_rules(workspace: Path) -> tuple[list[Skill], list[Diagnostic]]:
    """Return the project's rule files as skills, and diagnostics. O(names), with the limits of discovery.

    Rules in the folders from the project root to the workspace are always active. Rules in other folders are active for
    the files in these folders. A file with several links is read once. Links that leave the project are not followed.
    """
    project = project_root(workspace)
    notes: list[Diagnostic] = []
    rules = [
        _read_rule(file, real_path, project, scope_folder, notes)
        for file, real_path, scope_folder in _find_rule_files(project, workspace, notes)
    ]
    # Without the texts that were read here: a rule is read again when it is used, because it may have changed by then.
    return [skill.fresh() for skill in rules if skill is not None], notes


def find_rule_files(workspace: Path) -> dict[str, Path]:
    """Return the path of each rule file, with links resolved, by the name of the rule. O(names)."""
    project = project_root(workspace)
    return {
        file.relative_to(project).as_posix(): real_path
        for file, real_path, _ in _find_rule_files(project, workspace, [])
    }


def _find_rule_files(project: Path, workspace: Path, notes: list[Diagnostic]) -> Iterator[tuple[Path, Path, str]]:
    """Yield (path, path with links resolved, folder to which it applies) of every rule file, each file once."""
    visited: set[str] = set()
    project_prefix = os.path.realpath(project) + os.sep
    for file, scope_folder in _list_candidates(project, Path(os.path.abspath(workspace)), notes):
        real_path = os.path.realpath(file)
        if real_path in visited or not os.path.isfile(real_path):
            continue
        visited.add(real_path)
        if not real_path.startswith(project_prefix):
            notes.append(Diagnostic("link-out", "warning", "not read: the link leaves the project", path=str(file)))
            continue
        yield file, Path(real_path), scope_folder


def _list_candidates(project: Path, workspace: Path, notes: list[Diagnostic]) -> Iterator[tuple[Path, str]]:
    """Yield (path, folder to which it applies) of every possible rule file; an empty folder is the whole project."""
    project_names = set(_list_names(project))  # one listing instead of a `stat` for each possible name
    for name in _FILES:
        if name.partition("/")[0] in project_names:
            yield project / name, ""
    for folder, ending in _FOLDERS:
        if folder.partition("/")[0] in project_names:
            for subfolder, names in _walk(project / folder, _FOLDER_LIMITS, notes):
                yield from (
                    (project / folder / subfolder / name, "") for name in sorted(names) if name.endswith(ending)
                )
    for folder, names in _walk(project, WalkLimits(), notes):
        for name in _NESTED_FILES:
            if folder and name in names:
                yield project / folder / name, "" if workspace.is_relative_to(project / folder) else folder


def _list_names(folder: Path) -> list[str]:
    try:
        return os.listdir(folder)
    except OSError:
        return []


def _walk(top: Path, limits: WalkLimits, notes: list[Diagnostic]) -> Iterator[tuple[str, set[str]]]:
    """Yield (path relative to `top`, names of files) of `top` and its subfolders, except links and hidden folders."""
    deadline = time.monotonic() + limits.seconds
    pending = deque([""])
    name_count = 0
    while pending:
        if name_count > limits.names or time.monotonic() > deadline:
            notes.append(describe_limit(name_count > limits.names, limits, str(top), pending[0], len(pending)))
            return
        subfolder = pending.popleft()
        files, folders = _list_folder(top / subfolder)
        name_count += len(files) + len(folders)
        yield subfolder, files
        pending += [f"{subfolder}/{name}" if subfolder else name for name in sorted(folders)]


def _list_folder(folder: Path) -> tuple[set[str], list[str]]:
    """Return the names of the files and of the searched subfolders in a folder."""
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


def _read_rule(file: Path, real_path: Path, project: Path, scope_folder: str, notes: list[Diagnostic]) -> Skill | None:
    """Return the rule in a file; None, with diagnostics, if it cannot be read."""
    reading = read_file(real_path, source=str(project), scope="project")
    diagnostics = tuple(
        note
        for note in reading.diagnostics
        if note.code not in _SKILL_ONLY_DIAGNOSTICS and not note.code.startswith("name-")
    )
    notes += diagnostics
    if reading.skill is None:
        return None
    name = file.relative_to(project).as_posix()
    trigger = _choose_trigger(file, reading.skill, scope_folder)
    # Rules apply without being trusted, so they may not declare servers or hooks.
    return reading.skill.with_fields(
        name=name, trigger=trigger, path=real_path, inputs=(), mcp_tools={}, hooks=False, diagnostics=diagnostics
    )


def _choose_trigger(file: Path, skill: Skill, scope_folder: str) -> Trigger | None:
    """Return what activates a rule.

    None: it is always active. A keyword trigger without words: a model must load it.
    """
    if scope_folder:
        return PathTrigger((f"{scope_folder}/**",))
    fields = skill.frontmatter
    # Values in Windsurf: always_on, glob, model_decision, manual.
    activation = str(fields.get("trigger", "")).strip().lower() if ".windsurf" in file.parts else ""
    if activation in ("model_decision", "manual"):
        return KeywordTrigger(())
    globs = read_globs(fields.get("globs", fields.get("applyTo", fields.get("paths"))))
    if means_true(fields.get("alwaysApply")) or _MATCH_ALL.intersection(globs):
        return None
    if globs:
        return PathTrigger(globs)
    return KeywordTrigger(()) if file.suffix == ".mdc" or activation == "glob" else None
