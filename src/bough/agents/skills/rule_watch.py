"""Recording the rule files that change while a tool runs, so that a conversation follows no rule that its tools wrote.

Rule files that a person edits between two calls have another digest and are followed as usual.
"""

from __future__ import annotations

import asyncio
import hashlib
import os
from collections.abc import Awaitable, Callable, Mapping
from pathlib import Path
from typing import Any, Final

from pydantic_ai import RunContext
from pydantic_ai.capabilities import AbstractCapability
from pydantic_ai.messages import ToolCallPart
from pydantic_ai.tools import ToolDefinition

from bough.agents.context import ToolContext
from bough.agents.skills.activation import make_skip_events
from bough.cancellation import finish
from bough.events.model import RulesChanged
from bough.skills.find.rule_files import find_rule_files
from bough.skills.match.activation import make_rule_refusal
from bough.skills.read.parse import read_bounded

_READING: Final = frozenset({"list_skills", "search_skills", "load_skill", "load_skill_resource", "read_result"})
"""Tools that write nothing, in addition to those marked as idempotent."""

_Stamp = tuple[int, int, int, int]


class RuleWatch(AbstractCapability[ToolContext]):
    """Records the rule files that changed while a tool ran, even if it failed. One instance per run.

    Searches the project's rule files before and after each call, and reads those that changed: O(names), within the
    bounds of discovery.
    """

    def __init__(self, context: ToolContext | None = None) -> None:
        """Use `context`, or the run's deps if it is None."""
        self._context = context
        self._digests: dict[Path, tuple[_Stamp, str]] = {}
        self._recorded: set[tuple[str, str]] = set()

    async def wrap_tool_execute(
        self,
        ctx: RunContext[ToolContext],
        *,
        call: ToolCallPart,
        tool_def: ToolDefinition,
        args: dict[str, Any],
        handler: Callable[[dict[str, Any]], Awaitable[Any]],
    ) -> Any:
        """Run the tool, then record the rule files that changed, before its result is used."""
        context = self._context or ctx.deps
        reads_only = call.tool_name in _READING or bool((tool_def.metadata or {}).get("idempotent"))
        if context.workspace is None or reads_only:
            return await handler(args)
        digests = await asyncio.to_thread(self._read_digests, context.workspace)
        try:
            return await handler(args)
        finally:
            # Finished even when cancelled: a tool that was interrupted may have written a rule already.
            await finish(self._record(digests, context, context.workspace))

    async def _record(self, old_digests: Mapping[str, str], context: ToolContext, workspace: Path) -> None:
        digests = await asyncio.to_thread(self._read_digests, workspace)
        changed = {name: digest for name, digest in digests.items() if old_digests.get(name) != digest}
        # Calls of one response run concurrently and see the same changes: only the first one records them.
        new = {name: digest for name, digest in changed.items() if (name, digest) not in self._recorded}
        if not new:
            return
        self._recorded.update(new.items())  # before the first await, so that no concurrent call records them too
        await context.emit(RulesChanged(paths=tuple(new), hashes=tuple(new.values())))
        for event in make_skip_events((name, make_rule_refusal(name)) for name in new):
            await context.emit(event)

    def _read_digests(self, workspace: Path) -> dict[str, str]:
        """Return the digest of each rule file by the name of its rule. Reads only files that changed. Blocks."""
        digests: dict[str, str] = {}
        for name, file in find_rule_files(workspace).items():
            try:
                state = os.stat(file)
            except OSError:
                continue
            # With the change time, which a program cannot set back as it can set the modification time.
            stamp = (state.st_ino, state.st_size, state.st_mtime_ns, state.st_ctime_ns)
            entry = self._digests.get(file)
            if entry is None or entry[0] != stamp:
                data, _ = read_bounded(file)
                entry = self._digests[file] = (stamp, hashlib.sha256(data or b"").hexdigest())
            digests[name] = entry[1]
        return digests
