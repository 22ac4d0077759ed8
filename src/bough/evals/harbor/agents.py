"""Two agents that need no model: one runs a task's own solution, one does nothing."""

from __future__ import annotations

from typing import Literal, TypeAlias

from pydantic_ai.messages import ModelMessage, ModelResponse, TextPart, ToolCallPart, ToolReturnPart
from pydantic_ai.models.function import AgentInfo, FunctionModel
from pydantic_ai.usage import RequestUsage

from bough.agents.spec import AgentSpec
from bough.evals.harbor.place import TrialPlace
from bough.types import JsonObject

ReferenceAgent: TypeAlias = Literal["oracle", "nop"]
"""`oracle` shows that a task can be solved, `nop` that it is not solved already."""

_SOLVE = "run_solution"


def reference_agent(name: ReferenceAgent) -> AgentSpec:
    """Return the agent of that name; the oracle needs the tool of `SolutionTool`."""
    answer = _call_solution if name == "oracle" else _do_nothing
    return AgentSpec(name=name, model=FunctionModel(answer, model_name=name), system_prompt="", skills=())


class SolutionTool:
    """The oracle's tool: runs the solution where the task is."""

    def __init__(self, place: TrialPlace) -> None:
        self._place = place

    async def run_solution(self) -> JsonObject:
        """Run the task's own solution."""
        done = await self._place.solve()
        return {
            "exit_code": done.exit_code,
            "stdout": done.stdout.decode(errors="replace"),
            "stderr": done.stderr.decode(errors="replace"),
            "timed_out": done.timed_out,
        }


def _call_solution(messages: list[ModelMessage], info: AgentInfo) -> ModelResponse:
    if any(isinstance(part, ToolReturnPart) for part in messages[-1].parts):
        return _do_nothing(messages, info)
    return ModelResponse(parts=[ToolCallPart(_SOLVE, {})], usage=RequestUsage())


def _do_nothing(messages: list[ModelMessage], info: AgentInfo) -> ModelResponse:
    del messages, info
    return ModelResponse(parts=[TextPart("done")], usage=RequestUsage())
