"""Usage that can be read as `result.usage` and as `result.usage()`, on every supported version of PydanticAI.

Source: seed 004 (`ctx.usage.incr(agent_run.result.usage())`).
"""

from __future__ import annotations

from dataclasses import dataclass

from pydantic_ai.usage import RunUsage


@dataclass
class CallableUsage(RunUsage):
    """A `RunUsage` that returns itself when it is called."""

    def __call__(self) -> CallableUsage:
        """Return this very usage."""
        return self
