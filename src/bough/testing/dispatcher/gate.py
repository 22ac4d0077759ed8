"""An agent whose tasks wait at a gate."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from pydantic_ai.messages import ModelMessage, ModelResponse, TextPart, ToolCallPart, ToolReturnPart
from pydantic_ai.models.function import AgentInfo, FunctionModel

from bough.agents.spec import AgentSpec


class GatedAgent:
    """An agent whose tasks record their input and wait at a gate inside a tool, observable from the test.

    Attributes:
        asked: Inputs in the order of their first model request.
        begun: Inputs whose tool has started.
        ended: Inputs whose tool has ended, also by an error or cancellation.
    """

    def __init__(self) -> None:
        self.asked: list[str] = []
        self.begun: list[str] = []
        self.ended: list[str] = []
        self._gate = asyncio.Event()
        self._changed = asyncio.Event()
        self.spec = AgentSpec(name="gated", model=FunctionModel(self._respond), tools=(self.pass_gate,), skills=())

    def open(self) -> None:
        """Let current and future tools continue."""
        self._gate.set()

    def _respond(self, messages: list[ModelMessage], info: AgentInfo) -> ModelResponse:
        task_input = str(getattr(messages[0].parts[0], "content", ""))
        if any(isinstance(part, ToolReturnPart) for message in messages for part in message.parts):
            return ModelResponse([TextPart(f"done {task_input}")])
        self.asked.append(task_input)
        return ModelResponse([ToolCallPart("pass_gate", {"name": task_input})])

    async def pass_gate(self, name: str) -> str:
        """Wait until the gate is open."""
        self.begun.append(name)
        self._changed.set()
        try:
            await self._gate.wait()
        finally:
            self.ended.append(name)
            self._changed.set()
        return "passed"

    async def until(self, condition: Callable[[], bool]) -> None:
        """Wait until a condition on `begun` and `ended` holds."""
        while not condition():
            self._changed.clear()
            await self._changed.wait()
