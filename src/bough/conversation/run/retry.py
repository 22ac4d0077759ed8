"""Repeat requests that fail temporarily, and continue with another model if they keep failing.

A repeated request is built from the log, as every step is, so it includes messages that arrived in the meantime. Each
wait is recorded as an event, durable before the wait starts.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Iterator
from contextlib import suppress

from pydantic_ai.exceptions import (
    ModelAPIError,
    ModelHTTPError,
    ModelQuotaExceededError,
    ModelRequestRejectedError,
)
from pydantic_ai.models import Model

from bough.agents.models.failure import find_address, find_wrong_format, is_silence, list_causes
from bough.agents.models.resolve import with_v1
from bough.agents.retry_policy import RetryPolicy
from bough.conversation.log.journal import Journal
from bough.errors import BoughError, ModelError
from bough.events.model import Event, ModelResponded, PauseRequested, RequestRetried

_TEMPORARY_STATUSES = frozenset({408, 409, 429})
_NEXT_MODEL_STATUSES = frozenset({401, 403, 404})
_SILENT_ATTEMPTS = 2
"""Maximum number of requests to a server that sends nothing: each of them waits for the whole timeout."""
_CONNECTION_PACKAGES = ("httpx", "httpcore", "httpx2", "httpcore2", "anyio", "h11", "h2", "ssl")
"""Packages whose errors mean a lost, refused or broken connection."""


class Retries:
    """Handles the failed model requests of one run.

    Args:
        resolve: Returns the model that a string names. Raises `BoughError` if it cannot be used.
    """

    def __init__(
        self,
        journal: Journal,
        *,
        resolve: Callable[[str], Model],
    ) -> None:
        self._journal = journal
        self._model: Model | None = None
        self._policy = RetryPolicy()
        self._remaining_models: Iterator[str] = iter(())
        self._resolve = resolve
        self._failure_count = 0
        self._silence_count = 0
        self._waited_seconds = 0.0

    def configure(self, model: Model, policy: RetryPolicy, fallback: tuple[str, ...] = ()) -> None:
        """Use `model` from now on.

        Args:
            fallback: Model strings that are tried in this order if `model` keeps failing.
        """
        self._model, self._policy, self._remaining_models = model, policy, iter(fallback)
        self._reset()

    def _reset(self) -> None:
        self._failure_count, self._silence_count, self._waited_seconds = 0, 0, 0.0

    @property
    def model(self) -> Model:
        """The model of the next request: the configured one, or the fallback that replaced it."""
        if self._model is None:
            raise ModelError("no model was set", hint="this is a bug in bough; please report it")
        return self._model

    def watch(self, event: Event) -> None:
        """Reset the counters once a model has responded."""
        if isinstance(event, ModelResponded):
            self._reset()

    async def recover(self, error: ModelError) -> bool:
        """Wait or change the model. Returns True if the request is to be repeated, False if a pause was requested.

        Raises:
            ModelError: `error`, if neither a repeat nor another model can help.
        """
        cause = error.__cause__
        status = cause.status_code if isinstance(cause, ModelHTTPError) else None
        self._failure_count += 1
        self._silence_count += is_silence(cause)
        if (status == 404 or find_wrong_format(cause)) and await self._try_v1(error, status):
            return True
        is_temporary = is_temporary_failure(cause)
        seconds = self._compute_wait(cause) if is_temporary else None
        if seconds is not None:
            await self._journal.append(self._make_event(error, status, seconds))
            self._waited_seconds += seconds
            return not await self._wait(seconds)
        if status in _NEXT_MODEL_STATUSES or is_temporary or isinstance(cause, ModelQuotaExceededError):
            for name in self._remaining_models:
                if await self._change_model(name, error, status):
                    return True
        raise error

    def _compute_wait(self, cause: BaseException | None) -> float | None:
        """Return the seconds to wait; None if no attempt is left, or the total wait would exceed the policy's."""
        if self._failure_count >= self._policy.attempts or self._silence_count >= _SILENT_ATTEMPTS:
            return None
        after = cause.retry_after if isinstance(cause, ModelAPIError) else None
        seconds = self._policy.wait_seconds(self._failure_count, retry_after=after, random=random.random())  # noqa: S311
        return None if self._waited_seconds + seconds > self._policy.max_seconds else seconds

    async def _try_v1(self, error: ModelError, status: int | None) -> bool:
        """If the address lacks `/v1`, use it with `/v1` from now on, record that, and return True."""
        model = with_v1(self.model)
        if model is None:
            return False
        corrected = ModelError(f"{error.message}; trying {find_address(model)}")
        await self._journal.append(self._make_event(corrected, status, 0.0))
        self._model = model
        return True

    async def _change_model(self, name: str, error: ModelError, status: int | None) -> bool:
        """Replace the model by the one with this name, and return whether it can be used. Records either outcome."""
        failed_model = self.model.model_name
        try:
            self._model = self._resolve(name)
        except BoughError as unusable:
            await self._journal.append(self._make_event(unusable, None, 0.0, model=name))
            return False
        await self._journal.append(self._make_event(error, status, 0.0, model=failed_model, next_model=name))
        self._reset()
        return True

    def _make_event(
        self,
        error: BoughError,
        status: int | None,
        seconds: float,
        *,
        model: str | None = None,
        next_model: str | None = None,
    ) -> RequestRetried:
        return RequestRetried(
            attempt=self._failure_count,
            attempts=min(self._policy.attempts, _SILENT_ATTEMPTS) if self._silence_count else self._policy.attempts,
            status=status,
            error=error.message,
            wait_seconds=round(seconds, 3),
            model=model or self.model.model_name,
            next_model=next_model,
        )

    async def _wait(self, seconds: float) -> bool:
        """Wait, and return whether any process requested a pause in the meantime."""
        if self._journal.state.pausing:
            return True
        # From the last folded event on, so that no request between the check above and the subscription is missed.
        pause = asyncio.create_task(self._wait_for_pause(self._journal.durable - 1))
        try:
            done, _ = await asyncio.wait({pause}, timeout=seconds)
        finally:
            pause.cancel()
            with suppress(asyncio.CancelledError):
                await pause
        await self._journal.catch_up()
        return bool(done) or self._journal.state.pausing

    async def _wait_for_pause(self, after: int) -> None:
        """Return once the log has a request to pause after seq `after`."""
        async for stored in self._journal.store.subscribe(self._journal.cid, after):
            if isinstance(stored.event, PauseRequested):
                return


def is_temporary_failure(cause: BaseException | None) -> bool:
    """Whether the same request may succeed later: the server was overloaded or failing, or the connection broke."""
    if isinstance(cause, ModelQuotaExceededError) or find_wrong_format(cause):
        return False
    if isinstance(cause, ModelHTTPError):
        return cause.status_code in _TEMPORARY_STATUSES or cause.status_code >= 500
    if isinstance(cause, ModelAPIError):
        return not isinstance(cause, ModelRequestRejectedError)
    return any(_is_connection_error(error) for error in list_causes(cause))


def _is_connection_error(error: BaseException) -> bool:
    return isinstance(error, OSError) or type(error).__module__.partition(".")[0] in _CONNECTION_PACKAGES
