"""Recording the rule files that change while a tool runs, so that a conversation follows no rule that its tools wrote.

A rule file that a person edits between two calls is not recorded, and its rule applies.
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

_READ_ONLY_TOOLS: Final = frozenset(
    {"list_skills", "search_skills", "load_skill", "load_skill_resource", "read_result"}
)
"""Tools that write nothing. Tools that are marked as idempotent are not watched either."""

_Stamp = tuple[int, int, int, int]
"""Inode, size, mtime and ctime of a file."""


class RuleWatch(AbstractCapability[ToolContext]):
    """Records the rule files that changed while a tool ran, even if it failed. One instance per run.

    Searches for the project's rule files before and after each call, and reads those that changed. O(names), within the
    limits of discovery.
    """

    def __init__(self, context: ToolContext | None = None) -> None:
        """Create the capability; without `context`, it uses the run's deps."""
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
        """Run the tool, and record the rule files that changed before the result is used."""
        context = self._context or ctx.deps
        reads_only = call.tool_name in _READ_ONLY_TOOLS or bool((tool_def.metadata or {}).get("idempotent"))
        if context.workspace is None or reads_only:
            return await handler(args)
        digests = await asyncio.to_thread(self._read_digests, context.workspace)
        try:
            return await handler(args)
        finally:
            # Also if the call is cancelled: an interrupted tool may already have written a rule.
            await finish(self._record(digests, context, context.workspace))

    async def _record(self, earlier_digests: Mapping[str, str], context: ToolContext, workspace: Path) -> None:
        """Record each rule file whose digest differs from `earlier_digests`, once."""
        digests = await asyncio.to_thread(self._read_digests, workspace)
        changed = {name: digest for name, digest in digests.items() if earlier_digests.get(name) != digest}
        # The calls of a response run concurrently and find the same changes; only the first call records them.
        unrecorded = {name: digest for name, digest in changed.items() if (name, digest) not in self._recorded}
        if not unrecorded:
            return
        self._recorded.update(unrecorded.items())  # before the first await, so that no concurrent call records them too
        await context.emit(RulesChanged(paths=tuple(unrecorded), hashes=tuple(unrecorded.values())))
        for event in make_skip_events((name, make_rule_refusal(name)) for name in unrecorded):
            await context.emit(event)

    def _read_digests(self, workspace: Path) -> dict[str, str]:
        """Return the digest of each rule file by the name of the rule. Reads only files that changed. Blocks."""
        digests: dict[str, str] = {}
        for name, file in find_rule_files(workspace).items():
            try:
                state = os.stat(file)
            except OSError:
                continue
            # Includes the ctime, because a program can reset the mtime but not the ctime.
            stamp = (state.st_ino, state.st_size, state.st_mtime_ns, state.st_ctime_ns)
            cached = self._digests.get(file)
            if cached is None or cached[0] != stamp:
                data, _ = read_bounded(file)
                cached = self._digests[file] = (stamp, hashlib.sha256(data or b"").hexdigest())
            digests[name] = cached[1]
        return digests
