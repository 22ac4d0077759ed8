"""A model that replays recorded responses: deterministic, without a network."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from typing import Any

from pydantic_ai import RunContext
from pydantic_ai.messages import ModelMessage, ModelResponse
from pydantic_ai.models import Model, ModelRequestParameters, StreamedResponse
from pydantic_ai.profiles import ModelProfile
from pydantic_ai.settings import ModelSettings

from bough.agents.models.stream import PiecewiseResponse
from bough.errors import ModelError


class ReplayModel(Model[Any]):
    """Returns recorded responses in order, for any request.

    Attributes:
        count: The number of responses returned so far.
    """

    def __init__(
        self, responses: Sequence[ModelResponse], *, before_response: Callable[[int], Awaitable[None]] | None = None
    ) -> None:
        """Return `responses` in order; `before_response` is awaited with the index of each response."""
        # The profile supports everything, so that no request is changed or rejected because of this model.
        super().__init__(profile=ModelProfile(supports_inline_system_prompts=True, supports_json_schema_output=True))
        self._responses = tuple(responses)
        self._before_response = before_response
        self.count = 0

    @property
    def model_name(self) -> str:
        """Always `replay`."""
        return "replay"

    @property
    def system(self) -> str:
        """Always `replay`."""
        return "replay"

    async def request(
        self,
        messages: list[ModelMessage],
        model_settings: ModelSettings | None,
        model_request_parameters: ModelRequestParameters,
    ) -> ModelResponse:
        """Return the next recorded response.

        Raises:
            ModelError: There are no more recorded responses.
        """
        return await self._next()

    @asynccontextmanager
    async def request_stream(
        self,
        messages: list[ModelMessage],
        model_settings: ModelSettings | None,
        model_request_parameters: ModelRequestParameters,
        run_context: RunContext[Any] | None = None,
    ) -> AsyncGenerator[StreamedResponse]:
        """Stream the next recorded response; raises the errors of `request`."""
        yield PiecewiseResponse.of(await self._next(), model_request_parameters)

    async def _next(self) -> ModelResponse:
        if self.count == len(self._responses):
            raise ModelError(
                f"the recording has {self.count} responses, but one more was requested",
                hint="the run diverges from the recording; see the differences",
            )
        if self._before_response is not None:
            await self._before_response(self.count)
        # Counted after the wait, so that the request after a cancelled one gets the same response.
        self.count += 1
        return self._responses[self.count - 1]
