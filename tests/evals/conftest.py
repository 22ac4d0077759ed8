"""Fixtures of the eval tests: hand-made logs, agents whose model is scripted, a home folder."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from bough.agents.spec import AgentSpec
from bough.evals import Trace
from bough.events.model import (
    Event,
    ModelResponded,
    StateChanged,
    ToolCalled,
    ToolFailed,
    ToolReturned,
    UserMessage,
)
from bough.settings import Settings
from bough.testing import ScriptedModel


def responded(*calls: tuple[str, str, dict[str, Any]], text: str = "", **fields: Any) -> ModelResponded:
    """A response with calls given as (id, tool, arguments)."""
    parts: list[dict[str, Any]] = [{"part_kind": "text", "content": text}] if text else []
    parts += [{"part_kind": "tool-call", "tool_call_id": i, "tool_name": t, "args": a} for i, t, a in calls]
    return ModelResponded(response={"parts": parts}, **fields)


def called(
    tool: str, result: Any = "ok", *, id: str | None = None, failed: bool = False, **arguments: Any
) -> list[Event]:
    """A response with one call, the call, and how it ended."""
    id = id or f"{tool}-{sorted(arguments.items())!r}"
    end: Event = (
        ToolFailed(tool_call_id=id, tool=tool, error=str(result))
        if failed
        else ToolReturned(tool_call_id=id, tool=tool, result=result)
    )
    return [responded((id, tool, arguments)), ToolCalled(tool_call_id=id, tool=tool, arguments=arguments), end]


def answered(text: str) -> list[Event]:
    """The last response of a turn."""
    return [responded(text=text), StateChanged(changes={"status": "finished"})]


def trace_of(*groups: list[Event] | Event, ask: str = "do it") -> Trace:
    """The trace of one turn with these events."""
    events: list[Event] = [UserMessage.text(ask), StateChanged(changes={"status": "running"})]
    for group in groups:
        events += group if isinstance(group, list) else [group]
    return Trace.of(events)


@pytest.fixture
def settings(tmp_path: Path) -> Settings:
    return Settings.load(home=tmp_path / "home", env={}, cwd=tmp_path)


@pytest.fixture
def scripted() -> Callable[..., AgentSpec]:
    def spec(*steps: Any, tools: tuple[Any, ...] = (), **fields: Any) -> AgentSpec:
        return AgentSpec(name="tester", model=ScriptedModel(steps), tools=tools, skills=(), **fields)

    return spec


class Make:
    """Hand-made events and traces."""

    responded = staticmethod(responded)
    called = staticmethod(called)
    answered = staticmethod(answered)
    trace = staticmethod(trace_of)


@pytest.fixture
def make() -> type[Make]:
    return Make
