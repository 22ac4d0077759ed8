"""An agent whose tasks wait at a gate."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from pydantic_ai.messages import ModelMessage, ModelResponse, TextPart, ToolCallPart, ToolReturnPart
from pydantic_ai.models.function import AgentInfo, FunctionModel

from bough.agents.spec import AgentSpec


class GatedAgent:
    """An agent whose every task says its input and waits at a gate inside a tool, counted from outside.

    Attributes:
        asked: Inputs in the order in which their models were asked first.
        begun: Inputs whose tool has begun.
        ended: Inputs whose tool has ended, however it did.
    """

    def __init__(self) -> None:
        self.asked: list[str] = []
        self.begun: list[str] = []
        self.ended: list[str] = []
        self._gate = asyncio.Event()
        self._changed = asyncio.Event()
        self.spec = AgentSpec(name="gated", model=FunctionModel(self._respond), tools=(self.pass_gate,), skills=())

    def open(self) -> None:
        """Let the tools continue, those that come later too."""
        self._gate.set()

    def _respond(self, messages: list[ModelMessage], info: AgentInfo) -> ModelResponse:
        said = str(getattr(messages[0].parts[0], "content", ""))
        if any(isinstance(part, ToolReturnPart) for message in messages for part in message.parts):
            return ModelResponse([TextPart(f"done {said}")])
        self.asked.append(said)
        return ModelResponse([ToolCallPart("pass_gate", {"name": said})])

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
        """Wait until something holds of the tools that have begun and ended."""
        while not condition():
            self._changed.clear()
            await self._changed.wait()
