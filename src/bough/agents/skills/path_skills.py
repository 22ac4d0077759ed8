"""Activating skills when a tool touches a file: nested AGENTS.md, rules with globs, any skill with a `PathTrigger`.

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

_NAMES = frozenset({"path", "paths", "file", "files", "file_path", "file_paths", "filename", "filepath"})
"""Arguments of any tool that name files."""

_WORDS = {"run_skill_script": "args", "run_command": "command"}
"""Arguments whose words may name files."""

_MAX_WORDS = 500


class PathSkillIndex:
    """Finds the skills of a registry that a file activates; built once, used by every run.

    Patterns of a project's own skills and rules are relative to the project, patterns of other skills to the workspace.
    """

    def __init__(self, registry: SkillRegistry) -> None:
        skills = [skill for skill in registry.list_all() if isinstance(skill.trigger, PathTrigger)]
        self.registry = registry
        self.names = frozenset(skill.name for skill in skills)
        self._project = PathIndex([skill for skill in skills if skill.scope == "project"])
        self._others = PathIndex([skill for skill in skills if skill.scope != "project"])

    def match(self, file: Path, workspace: Path) -> list[str]:
        """Return the names of the skills that a file in the workspace activates."""
        inner = self._others.match(os.path.relpath(file, workspace))
        return [*self._project.match(os.path.relpath(file, project_root(workspace))), *inner]


class PathSkills(AbstractCapability[ToolContext]):
    """Activates skills for the files that a tool touched, after the tool has run. One instance per run."""

    def __init__(self, index: PathSkillIndex, context: ToolContext | None = None) -> None:
        """Use `context`, or the run's deps if it is None."""
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
        """Run the tool, then record the skills that its files activate; the model sees both in one request."""
        result = await handler(args)
        context = self._context or ctx.deps
        if self._index.names and context.workspace is not None:
            # The calls of one response run concurrently: without the lock two of them would activate the same skill.
            async with self._lock:
                await self._activate(call.tool_name, args, result, context, context.workspace)
        return result

    async def _activate(self, tool: str, args: dict[str, Any], result: Any, deps: ToolContext, workspace: Path) -> None:
        events = await asyncio.to_thread(self._events, tool, args, result, workspace, deps)
        for event in events:
            await deps.emit(event)

    def _events(self, tool: str, args: dict[str, Any], result: Any, workspace: Path, deps: ToolContext) -> list[Event]:
        active = deps.active_skills()
        by_skill: dict[str, TriggerMatch] = {}
        for file in find_touched_files(tool, args, result, workspace):
            relative_path = Path(os.path.relpath(file, workspace)).as_posix()
            for name in self._index.match(file, workspace):
                by_skill.setdefault(name, TriggerMatch(name, "keyword", relative_path))
        registry = self._index.registry
        matches = [
            match
            for name, match in by_skill.items()
            if name not in self._reported and not is_current(registry, name, active.get(name))
        ]
        return self._activate_within_bounds(matches, active, deps.changed_rules())

    def _activate_within_bounds(
        self, matches: list[TriggerMatch], active: Mapping[str, str], changed_rules: Collection[str]
    ) -> list[Event]:
        """Return the events of the skills that fit the bound, and report each of the others once."""
        room = max(0, MAX_ACTIVE - len(active))
        # Skills that are active already take no room: they only get a newer text.
        fitting = [match for match in matches if match.skill in active or (room := room - 1) >= 0]
        done = activate_matches(self._index.registry, fitting, changed_rules=changed_rules)
        left_out = [(match.skill, reason) for match, reason in done.skipped]
        full = make_count_error(f"at most {MAX_ACTIVE} skills can be active")
        left_out += [(match.skill, full) for match in matches if match not in fitting]
        self._reported.update(name for name, _ in left_out)
        texts = [
            make_activation_event(
                activation, trigger="path", previous_hash=active.get(activation.name), keyword=match.keyword
            )
            for match, activation in done.activations
        ]
        return [*texts, *make_skip_events(left_out)]


def find_touched_files(tool: str, args: Mapping[str, Any], result: Any, workspace: Path) -> list[Path]:
    """Return the workspace files that a tool call named or created. O(words), at most 500 words."""
    root = Path(os.path.abspath(workspace))
    candidates = islice(_candidates(tool, args, result), _MAX_WORDS)
    # By name, without resolving links: the patterns of skills are about the names in the workspace.
    paths = (Path(os.path.normpath(root / text)) for text in candidates if text and "\0" not in text)
    return list(dict.fromkeys(path for path in paths if path.is_relative_to(root) and _is_file(path)))


def _candidates(tool: str, args: Mapping[str, Any], result: Any) -> Iterator[str]:
    for name, value in args.items():
        if name in _NAMES:
            yield from _texts(value)
    for text in _texts(args.get(_WORDS.get(tool, ""))):
        for word in (text, *split_words(text)):
            yield word
            yield word.partition("=")[2]
    if tool in _WORDS and isinstance(result, dict):
        output_files = cast("dict[str, list[dict[str, Any]]]", result).get("output_files", [])
        yield from (str(file["path"]) for file in output_files)


def _texts(value: Any) -> Iterator[str]:
    match value:
        case str():
            yield value
        case list() | tuple():
            for item in value:  # pyright: ignore[reportUnknownVariableType]
                yield from _texts(item)
        case dict():
            yield from _texts(list(value.values()))  # pyright: ignore[reportUnknownArgumentType, reportUnknownMemberType]
        case _:
            return


def _is_file(path: Path) -> bool:
    try:
        return path.is_file()
    except OSError:  # too long for a path
        return False
