"""A parent and its child for processes of their own: every request and step is a line of a ledger outside the store.

`LEDGER` names the file; while `LEDGER`.gate is there, the child's tool `work` blocks, so that its process can be killed
at a known place.
"""

from __future__ import annotations

import os
import time
from pathlib import Path

from pydantic_ai.messages import ModelMessage, ModelResponse, TextPart, ToolCallPart, ToolReturnPart
from pydantic_ai.models.function import AgentInfo, FunctionModel

from bough.agents.spec import AgentSpec


def note(line: str) -> None:
    """Append a line to the ledger, whole."""
    with Path(os.environ["LEDGER"]).open("a") as file:
        file.write(line + "\n")


def _results(messages: list[ModelMessage]) -> list[str]:
    return [str(part.content) for message in messages for part in message.parts if isinstance(part, ToolReturnPart)]


def delegate(messages: list[ModelMessage], info: AgentInfo) -> ModelResponse:
    """Delegate everything, then say what came back."""
    results = _results(messages)
    note(f"parent {len(results)}")
    if results:
        return ModelResponse([TextPart(f"child said: {results[-1]}")])
    return ModelResponse([ToolCallPart("delegate", {"agent_name": "child", "prompt": "go"})])


def respond(messages: list[ModelMessage], info: AgentInfo) -> ModelResponse:
    """Work once, ask once, then answer with what was said."""
    results = _results(messages)
    note(f"child {len(results)}")
    if not results:
        return ModelResponse([ToolCallPart("work", {})])
    if len(results) == 1 and "ASKS" in os.environ:
        return ModelResponse([ToolCallPart("ask", {"question": "Which colour?"})])
    return ModelResponse([TextPart(results[-1])])


def work() -> str:
    """Do the work; idempotent by nature, so that a killed one may run again."""
    note("begin work")
    while Path(os.environ["LEDGER"] + ".gate").exists():
        time.sleep(0.01)
    note("end work")
    return "worked"


child = AgentSpec(name="child", model=FunctionModel(respond), tools=(work,), skills=(), ask=True)
parent = AgentSpec(name="parent", model=FunctionModel(delegate), skills=(), sub_agents=(child,))
