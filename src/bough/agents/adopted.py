"""Running a user's PydanticAI agent as the agent of a conversation, with its own deps and bough's tools added."""

from __future__ import annotations

import dataclasses
from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

from pydantic_ai import RunContext
from pydantic_ai.agent import AbstractAgent, WrapperAgent
from pydantic_ai.capabilities import AbstractCapability, ReinjectSystemPrompt
from pydantic_ai.models import Model
from pydantic_ai.run import AgentRun
from pydantic_ai.settings import ModelSettings
from pydantic_ai.toolsets import AbstractToolset, ToolsetTool, WrapperToolset
from typing_extensions import override

from bough.agents.context import ToolContext


class AdoptedAgent(WrapperAgent[Any, Any]):
    """Runs the wrapped agent unchanged; `iter` adds the conversation's instructions and tools.

    The agent's tools get `own_deps`; bough's tools get the context passed to `iter` as `deps`. Instructions, toolsets,
    capabilities, output validators and settings of the wrapped agent stay in force.
    """

    def __init__(
        self,
        wrapped: AbstractAgent[Any, Any],
        *,
        own_deps: Any,
        model: Model,
        instructions: str,
        toolsets: Sequence[AbstractToolset[Any]],
        capabilities: Callable[[ToolContext], Sequence[AbstractCapability[Any]]],
        settings: ModelSettings | None = None,
    ) -> None:
        super().__init__(wrapped)
        self._own_deps = own_deps
        self._model = model
        self._added_instructions = instructions
        self._added_toolsets = toolsets
        self._capabilities = capabilities
        self._added_settings = settings

    @asynccontextmanager
    async def iter(  # pyright: ignore[reportIncompatibleMethodOverride] - only what the loop gives
        self,
        *,
        deps: ToolContext,
        model: Model | None = None,
        capabilities: Sequence[AbstractCapability[Any]] = (),
        **options: Any,
    ) -> AsyncGenerator[AgentRun[Any, Any]]:
        """Run the wrapped agent on a message history, with the deps of both sides."""
        async with self.wrapped.iter(
            deps=self._own_deps,
            model=model or self._model,
            instructions=self._added_instructions or None,
            toolsets=[ToolsetWithDeps(toolset, deps) for toolset in self._added_toolsets],
            model_settings=self._added_settings,
            # A log holds no system prompt, so the history lacks the agent's own: PydanticAI adds it at each request.
            capabilities=[ReinjectSystemPrompt(), *self._capabilities(deps), *capabilities],
            **options,
        ) as run:
            yield run


@dataclass
class ToolsetWithDeps(WrapperToolset[Any]):
    """A toolset whose tools get `deps` instead of the deps of the run."""

    deps: Any

    @override
    async def for_run(self, ctx: RunContext[Any]) -> AbstractToolset[Any]:
        return await super().for_run(self._with_deps(ctx))

    @override
    async def for_run_step(self, ctx: RunContext[Any]) -> AbstractToolset[Any]:
        return await super().for_run_step(self._with_deps(ctx))

    @override
    async def get_tools(self, ctx: RunContext[Any]) -> dict[str, ToolsetTool[Any]]:
        return await super().get_tools(self._with_deps(ctx))

    @override
    async def call_tool(
        self, name: str, tool_args: dict[str, Any], ctx: RunContext[Any], tool: ToolsetTool[Any]
    ) -> Any:
        return await super().call_tool(name, tool_args, self._with_deps(ctx), tool)

    def _with_deps(self, ctx: RunContext[Any]) -> RunContext[Any]:
        return dataclasses.replace(ctx, deps=self.deps)
