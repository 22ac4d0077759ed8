"""Activating skills when a tool touches a file: nested AGENTS.md, rules with globs, all skills with a `PathTrigger`.

Source: OpenHands and the rule files of other clients.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Awaitable, Callable, Collection, Iterator, Mapping
from itertools import islice
from pathlib import Path
from typing import Any, cast

from pydantic_ai import RunContext
from pydantic_ai.capabilities import AbstractCapability
from pydantic_ai.messages import ToolCallPart
from pydantic_ai.tools import ToolDefinition

from bough.agents.context import ToolContext
from bough.agents.skills.activation import MAX_ACTIVE, is_current, make_activation_event, make_skip_events
from bough.events.model import Event
from bough.skills import SkillRegistry, TriggerMatch
from bough.skills.find.places import project_root
from bough.skills.match.activation import activate_matches, make_count_error
from bough.skills.match.inputs import split_words
from bough.skills.match.path_triggers import PathIndex
from bough.skills.model import PathTrigger

_FILE_ARGUMENTS = frozenset({"path", "paths", "file", "files", "file_path", "file_paths", "filename", "filepath"})
"""Names of arguments that contain file names, in any tool."""

_WORD_ARGUMENTS = {"run_skill_script": "args", "run_command": "command"}
"""The argument of a tool in which any word may be a file name, by tool."""

_MAX_WORDS = 500


class PathSkillIndex:
    """Finds the skills of a registry that a file activates; built once for all runs.

    Patterns of project skills and rules are relative to the project; patterns of other skills, to the workspace.
    """

    def __init__(self, registry: SkillRegistry) -> None:
        skills = [skill for skill in registry.list_all() if isinstance(skill.trigger, PathTrigger)]
        self.registry = registry
        self.names = frozenset(skill.name for skill in skills)
        self._project_index = PathIndex([skill for skill in skills if skill.scope == "project"])
        self._other_index = PathIndex([skill for skill in skills if skill.scope != "project"])

    def match(self, file: Path, workspace: Path) -> list[str]:
        """Return the names of the skills that a file in the workspace activates."""
        other_names = self._other_index.match(os.path.relpath(file, workspace))
        project_names = self._project_index.match(os.path.relpath(file, project_root(workspace)))
        return [*project_names, *other_names]


class PathSkills(AbstractCapability[ToolContext]):
    """Activates skills for the files that a tool touched, after the tool has run. One instance per run."""

    def __init__(self, index: PathSkillIndex, context: ToolContext | None = None) -> None:
        """Create the capability; without `context`, it uses the run's deps."""
        self._index = index
        self._context = context
        self._lock = asyncio.Lock()
        self._reported: set[str] = set()

    async def wrap_tool_execute(
        self,
        ctx: RunContext[ToolContext],
        *,
        call: ToolCallPart,
        tool_def: ToolDefinition,
        args: dict[str, Any],
        handler: Callable[[dict[str, Any]], Awaitable[Any]],
    ) -> Any:
        """Run the tool, then record the skills that its files activate, so that the next request has both."""
        result = await handler(args)
        context = self._context or ctx.deps
        if self._index.names and context.workspace is not None:
            # The calls of a response run concurrently: without the lock, two calls could activate the same skill.
            async with self._lock:
                await self._activate(call.tool_name, args, result, context, context.workspace)
        return result

    async def _activate(self, tool: str, args: dict[str, Any], result: Any, deps: ToolContext, workspace: Path) -> None:
        events = await asyncio.to_thread(self._make_events, tool, args, result, workspace, deps)
        for event in events:
            await deps.emit(event)

    def _make_events(
        self, tool: str, args: dict[str, Any], result: Any, workspace: Path, deps: ToolContext
    ) -> list[Event]:
        """Return the events of the skills that the touched files activate and that are not active yet. Blocks."""
        active = deps.active_skills()
        matches_by_skill: dict[str, TriggerMatch] = {}
        for file in find_touched_files(tool, args, result, workspace):
            relative_path = Path(os.path.relpath(file, workspace)).as_posix()
            for name in self._index.match(file, workspace):
                matches_by_skill.setdefault(name, TriggerMatch(name, "keyword", relative_path))
        registry = self._index.registry
        matches = [
            match
            for name, match in matches_by_skill.items()
            if name not in self._reported and not is_current(registry, name, active.get(name))
        ]
        return self._activate_within_limit(matches, active, deps.changed_rules())

    def _activate_within_limit(
        self, matches: list[TriggerMatch], active: Mapping[str, str], changed_rules: Collection[str]
    ) -> list[Event]:
        """Return the events that activate skills up to the limit, and report each omitted skill once."""
        # Skills that are already active do not count: they only get a newer text.
        new_matches = [match for match in matches if match.skill not in active]
        excess_matches = new_matches[max(0, MAX_ACTIVE - len(active)) :]
        accepted = [match for match in matches if match not in excess_matches]
        activated = activate_matches(self._index.registry, accepted, changed_rules=changed_rules)
        limit_error = make_count_error(f"at most {MAX_ACTIVE} skills can be active")
        omitted = [(match.skill, error) for match, error in activated.skipped]
        omitted += [(match.skill, limit_error) for match in excess_matches]
        self._reported.update(name for name, _ in omitted)
        make_activation_events = [
            make_activation_event(
                activation, trigger="path", previous_hash=active.get(activation.name), keyword=match.keyword
            )
            for match, activation in activated.activations
        ]
        return [*make_activation_events, *make_skip_events(omitted)]


def find_touched_files(tool: str, args: Mapping[str, Any], result: Any, workspace: Path) -> list[Path]:
    """Return the workspace files that a tool call named or created. O(words), up to 500 words."""
    root = Path(os.path.abspath(workspace))
    candidates = islice(_list_candidates(tool, args, result), _MAX_WORDS)
    # Links are not resolved, because the patterns of skills apply to names in the workspace.
    paths = (Path(os.path.normpath(root / text)) for text in candidates if text and "\0" not in text)
    return list(dict.fromkeys(path for path in paths if path.is_relative_to(root) and _is_file(path)))


def _list_candidates(tool: str, args: Mapping[str, Any], result: Any) -> Iterator[str]:
    """Yield the texts of a tool call that may be file names, and the output files of its result."""
    for name, value in args.items():
        if name in _FILE_ARGUMENTS:
            yield from _list_texts(value)
    for text in _list_texts(args.get(_WORD_ARGUMENTS.get(tool, ""))):
        for word in (text, *split_words(text)):
            yield word
            yield word.partition("=")[2]
    if tool in _WORD_ARGUMENTS and isinstance(result, dict):
        output_files = cast("dict[str, list[dict[str, Any]]]", result).get("output_files", [])
        yield from (str(file["path"]) for file in output_files)


def _list_texts(value: Any) -> Iterator[str]:
    """Yield all texts in a JSON value."""
    match value:
        case str():
            yield value
        case list() | tuple():
            for item in value:  # pyright: ignore[reportUnknownVariableType]
                yield from _list_texts(item)
        case dict():
            yield from _list_texts(list(value.values()))  # pyright: ignore[reportUnknownArgumentType, reportUnknownMemberType]
        case _:
            return


def _is_file(path: Path) -> bool:
    try:
        return path.is_file()
    except OSError:  # too long for a path
        return False
