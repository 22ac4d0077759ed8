"""The offline planner: a model that needs no key, no network and no weights.

Like any model, it receives the instructions with the skill catalogue, the messages and the tools, and returns text or
tool calls. Rules choose the calls; the text is made from their results.
"""

from __future__ import annotations

import os
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from dataclasses import replace
from itertools import islice
from pathlib import Path
from typing import Any

from anyio.to_thread import run_sync
from pydantic_ai import RunContext
from pydantic_ai.messages import ModelMessage, ModelResponse, TextPart, ToolCallPart
from pydantic_ai.models import Model, ModelRequestParameters, StreamedResponse
from pydantic_ai.profiles import ModelProfile
from pydantic_ai.settings import ModelSettings
from pydantic_ai.usage import RequestUsage

from bough.agents.context import ToolContext
from bough.agents.models.planner import PlannedCall, Refusal, mark_folders, plan, read_turn
from bough.agents.models.stream import PiecewiseResponse
from bough.errors import ModelError

_NAME = "offline"
_MAX_ENTRIES = 1_000
"""How many entries of a working folder are read for the names of its folders."""


class OfflineModel(Model[Any]):
    """Chooses a skill by rules, runs its script through the tools an LLM would call, and answers from the result.

    The same messages always give the same step. The usage is zero.
    """

    def __init__(self) -> None:
        super().__init__(profile=ModelProfile(supports_inline_system_prompts=True))

    @property
    def model_name(self) -> str:
        """Always `offline`."""
        return _NAME

    @property
    def system(self) -> str:
        """Always `offline`."""
        return _NAME

    async def request(
        self,
        messages: list[ModelMessage],
        model_settings: ModelSettings | None,
        model_request_parameters: ModelRequestParameters,
    ) -> ModelResponse:
        """Return the next step. O(messages), plus one small FTS5 index of the catalogue.

        Raises:
            ModelError: The agent requires structured output, which the planner cannot produce.
        """
        _, parameters = self.prepare_request(model_settings, model_request_parameters)
        return await self._respond(messages, parameters)

    @asynccontextmanager
    async def request_stream(
        self,
        messages: list[ModelMessage],
        model_settings: ModelSettings | None,
        model_request_parameters: ModelRequestParameters,
        run_context: RunContext[Any] | None = None,
    ) -> AsyncGenerator[StreamedResponse]:
        """Stream the next step in a few deltas; raises the errors of `request`."""
        _, parameters = self.prepare_request(model_settings, model_request_parameters)
        deps = None if run_context is None else run_context.deps
        workspace = deps.workspace if isinstance(deps, ToolContext) else None
        yield PiecewiseResponse.of(await self._respond(messages, parameters, workspace), parameters)

    async def _respond(
        self, messages: list[ModelMessage], parameters: ModelRequestParameters, workspace: Path | None = None
    ) -> ModelResponse:
        """Return the planner's next step as a model response."""
        if not parameters.allow_text_output:
            raise ModelError(
                "the offline planner answers in text only, but this agent requires structured output",
                hint="choose a model, for example --model openai:NAME",
            )
        # In a thread, because indexing the catalogue in SQLite would block the event loop.
        step = await run_sync(lambda: _plan(messages, parameters, workspace))
        is_refusal = isinstance(step, Refusal)
        part = ToolCallPart(step.tool, step.args) if isinstance(step, PlannedCall) else TextPart(str(step))
        return ModelResponse(
            parts=[part],
            usage=RequestUsage(),
            model_name=_NAME,
            provider_name=_NAME,
            finish_reason="tool_call" if isinstance(step, PlannedCall) else "stop",
            provider_details={"nothing_fits": True} if is_refusal else None,
        )


def _plan(
    messages: list[ModelMessage], parameters: ModelRequestParameters, workspace: Path | None
) -> PlannedCall | str:
    turn = read_turn(messages, parameters)
    return plan(replace(turn, message=mark_folders(turn.message, list_folders(workspace))))


def list_folders(workspace: Path | None) -> frozenset[str]:
    """Return the names of the folders in a working folder, without links; none if it cannot be read."""
    if workspace is None:
        return frozenset()
    try:
        with os.scandir(workspace) as entries:
            return frozenset(
                entry.name for entry in islice(entries, _MAX_ENTRIES) if entry.is_dir(follow_symlinks=False)
            )
    except OSError:
        return frozenset()
