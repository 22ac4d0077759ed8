"""A model whose requests are repeated when its server is busy: after 2, 4, 8 and 16 seconds.

Source: seed 003, the judge's backoff on 429.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any, TypeAlias

import anyio
from pydantic_ai import RunContext
from pydantic_ai.exceptions import ModelHTTPError
from pydantic_ai.messages import ModelMessage, ModelResponse
from pydantic_ai.models import Model, ModelRequestParameters, StreamedResponse
from pydantic_ai.models.wrapper import WrapperModel
from pydantic_ai.settings import ModelSettings, merge_model_settings

from bough.agents.models.stream import PiecewiseResponse

WAITS_SECONDS = (2.0, 4.0, 8.0, 16.0)
BUSY = frozenset({429, 503})

Sleep: TypeAlias = Callable[[float], Awaitable[None]]


class RetryingModel(WrapperModel):
    """Asks again while the server says that it is busy (429, 503); `Retry-After` is a minimum of each wait."""

    def __init__(self, model: Model[Any], settings: ModelSettings, *, sleep: Sleep = anyio.sleep) -> None:
        """Wrap `model`; `settings` are used where the agent names none."""
        super().__init__(model)
        self._own = settings
        self._sleep = sleep

    @property
    def settings(self) -> ModelSettings | None:
        """The wrapped model's settings with those given on top."""
        return merge_model_settings(self.wrapped.settings, self._own)

    async def request(
        self,
        messages: list[ModelMessage],
        model_settings: ModelSettings | None,
        model_request_parameters: ModelRequestParameters,
    ) -> ModelResponse:
        """Return the response; after four waits the server's refusal is raised."""
        for wait in WAITS_SECONDS:
            try:
                return await super().request(messages, model_settings, model_request_parameters)
            except ModelHTTPError as error:
                if error.status_code not in BUSY:
                    raise
                await self._sleep(max(wait, error.retry_after or 0.0))
        return await super().request(messages, model_settings, model_request_parameters)

    @asynccontextmanager
    async def request_stream(
        self,
        messages: list[ModelMessage],
        model_settings: ModelSettings | None,
        model_request_parameters: ModelRequestParameters,
        run_context: RunContext[Any] | None = None,
    ) -> AsyncGenerator[StreamedResponse]:
        """Yield the whole response as a stream: nobody watches a judge write, and a stream cannot be repeated."""
        response = await self.request(messages, model_settings, model_request_parameters)
        yield PiecewiseResponse.of(response, model_request_parameters)
