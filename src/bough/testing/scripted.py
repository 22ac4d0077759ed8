"""A model that returns scripted responses and records its requests, for tests of agents and conversations."""

from __future__ import annotations

import inspect
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from typing import Any, TypeAlias

from pydantic_ai import RunContext
from pydantic_ai.messages import ModelMessage, ModelResponse, ModelResponsePart, TextPart, ToolCallPart
from pydantic_ai.models import Model, ModelRequestParameters, StreamedResponse
from pydantic_ai.profiles import ModelProfile
from pydantic_ai.settings import ModelSettings

from bough.agents.models.stream import PiecewiseResponse
from bough.errors import InvalidInput, ModelError


@dataclass(frozen=True, kw_only=True)
class Asked:
    """One request to a `ScriptedModel`.

    Attributes:
        instructions: The parts of the system prompt, joined by blank lines.
        tools: Names of the offered tools.
        streamed: Whether a stream was requested.
    """

    messages: tuple[ModelMessage, ...]
    instructions: str
    tools: tuple[str, ...]
    parameters: ModelRequestParameters
    settings: ModelSettings | None
    streamed: bool


Piece: TypeAlias = str | ModelResponsePart | BaseException
"""A part of a response: text, any PydanticAI response part, or an exception to raise at this point."""

Scripted: TypeAlias = Piece | Sequence[Piece] | ModelResponse
"""One response."""

Step: TypeAlias = Scripted | Callable[[Asked], Scripted | Awaitable[Scripted]]
"""One response, or a function (async or not) that returns it for a request."""


def tool_call(tool: str, /, **args: Any) -> ToolCallPart:
    """Return a call of `tool` with the arguments `args` and a new id."""
    return ToolCallPart(tool, args)


class ScriptedModel(Model[Any]):
    """Answers its requests with `steps`, in order, streamed or not.

    ```python
    model = ScriptedModel([tool_call("add", a=1, b=2), lambda asked: f"I was asked {len(asked.messages)} messages"])
    ```

    An exception in a step is raised instead of a response; in a stream, it is raised after the pieces before it.

    Attributes:
        asked: The requests so far, oldest first, including failed ones.

    Source: the scripted model of openai-agents.
    """

    def __init__(self, steps: Iterable[Step], *, model_name: str = "scripted") -> None:
        super().__init__(profile=ModelProfile(supports_inline_system_prompts=True, supports_json_schema_output=True))
        self._steps = tuple(steps)
        self._model_name = model_name
        self.asked: list[Asked] = []

    @property
    def model_name(self) -> str:
        """The name passed to the constructor."""
        return self._model_name

    @property
    def system(self) -> str:
        """Always `scripted`."""
        return "scripted"

    @property
    def requests(self) -> int:
        """The number of requests so far."""
        return len(self.asked)

    async def request(
        self,
        messages: list[ModelMessage],
        model_settings: ModelSettings | None,
        model_request_parameters: ModelRequestParameters,
    ) -> ModelResponse:
        """Return the next step's response, or raise its exception.

        Raises:
            ModelError: No step is left.
        """
        response, failure, _ = await self._next(messages, model_settings, model_request_parameters, streamed=False)
        if failure is not None:
            raise failure
        return response

    @asynccontextmanager
    async def request_stream(
        self,
        messages: list[ModelMessage],
        model_settings: ModelSettings | None,
        model_request_parameters: ModelRequestParameters,
        run_context: RunContext[Any] | None = None,
    ) -> AsyncGenerator[StreamedResponse]:
        """Stream the next step's response in a few deltas; raises the errors of `request`."""
        response, failure, parameters = await self._next(
            messages, model_settings, model_request_parameters, streamed=True
        )
        if failure is not None and not response.parts:
            raise failure
        yield PiecewiseResponse.of(response, parameters, failure=failure)

    async def _next(
        self,
        messages: list[ModelMessage],
        settings: ModelSettings | None,
        parameters: ModelRequestParameters,
        *,
        streamed: bool,
    ) -> tuple[ModelResponse, BaseException | None, ModelRequestParameters]:
        """Record a request; return its response, the exception to raise after it, and the prepared parameters."""
        settings, parameters = self.prepare_request(settings, parameters)
        request = Asked(
            messages=tuple(messages),
            instructions="\n\n".join(part.content for part in parameters.instruction_parts or ()),
            tools=tuple(tool.name for tool in parameters.declared_function_tools),
            parameters=parameters,
            settings=settings,
            streamed=streamed,
        )
        # Before the step runs, so that a step that is a function finds its own request last in `asked`.
        self.asked.append(request)
        response, failure = self._parse_response(await self._run_step(request))
        return response, failure, parameters

    async def _run_step(self, request: Asked) -> Scripted:
        if len(self.asked) > len(self._steps):
            raise ModelError(
                f"the script has {len(self._steps)} responses, and one more was requested",
                hint="add a step, or find out why the model was asked again",
            )
        step = self._steps[len(self.asked) - 1]
        if not callable(step):
            return step
        result = step(request)
        return await result if inspect.isawaitable(result) else result

    def _parse_response(self, scripted: Scripted) -> tuple[ModelResponse, BaseException | None]:
        """Return the pieces before the first exception as a response, and this exception."""
        if isinstance(scripted, ModelResponse):
            return replace(scripted, model_name=scripted.model_name or self._model_name), None
        is_one_piece = isinstance(scripted, str | BaseException) or not isinstance(scripted, Sequence)
        pieces: Sequence[Piece] = [scripted] if is_one_piece else scripted  # pyright: ignore[reportAssignmentType]
        parts: list[ModelResponsePart] = []
        for piece in pieces:
            if isinstance(piece, BaseException):
                return self._make_response(parts), piece
            parts.append(_make_part(piece))
        return self._make_response(parts), None

    def _make_response(self, parts: list[ModelResponsePart]) -> ModelResponse:
        has_calls = any(isinstance(part, ToolCallPart) for part in parts)
        return ModelResponse(
            parts=parts,
            model_name=self._model_name,
            provider_name="scripted",
            finish_reason="tool_call" if has_calls else "stop",
        )


def _make_part(piece: object) -> ModelResponsePart:
    if isinstance(piece, str):
        return TextPart(piece)
    if hasattr(piece, "part_kind"):
        return piece  # pyright: ignore[reportReturnType]
    raise InvalidInput(
        f"a scripted response cannot contain {piece!r}", hint="use text, tool_call(…), a response part, or an exception"
    )
