"""Repeating a request that failed for a while, and continuing with another model when it keeps failing.

A repeat begins anew from the log, as every step does: what was said meanwhile is in it. Each wait is an event, durable
before it begins.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Iterator
from contextlib import suppress

from pydantic_ai.exceptions import ModelAPIError, ModelHTTPError, ModelRequestRejectedError
from pydantic_ai.models import Model

from bough.agents.retry_policy import RetryPolicy
from bough.conversation.log.journal import Journal
from bough.errors import BoughError, ModelError
from bough.events.model import Event, ModelResponded, PauseRequested, RequestRetried

_REPEATED = frozenset({408, 409, 429})
_NEXT_MODEL = frozenset({401, 403, 404})
_LOST = ("httpx", "httpcore", "httpx2", "httpcore2", "anyio", "h11", "h2", "ssl")
"""Packages whose errors mean a connection that was lost, refused or broken off."""


class Retries:
    """What becomes of the failed requests of one run.

    Args:
        resolve: Returns the model that a string names, or raises why it cannot be used.
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
        self._left: Iterator[str] = iter(())
        self._resolve = resolve
        self._failed = 0
        self._waited = 0.0

    def configure(self, model: Model, policy: RetryPolicy, fallback: tuple[str, ...] = ()) -> None:
        """Ask `model` from here on.

        Args:
            fallback: Model strings that are tried in this order when it keeps failing.
        """
        self._model, self._policy, self._left = model, policy, iter(fallback)
        self._failed, self._waited = 0, 0.0

    @property
    def model(self) -> Model:
        """The model to ask; the first of the fallback that still works."""
        if self._model is None:
            raise ModelError("no model was set", hint="this is a bug in bough; please report it")
        return self._model

    def watch(self, event: Event) -> None:
        """Count anew once a model has answered."""
        if isinstance(event, ModelResponded):
            self._failed, self._waited = 0, 0.0

    async def recover(self, error: ModelError) -> bool:
        """Wait, or change the model, and return whether the request is to be repeated; False: somebody pauses the run.

        Raises:
            ModelError: `error`, where a repeat is of no use.
        """
        cause = error.__cause__
        status = cause.status_code if isinstance(cause, ModelHTTPError) else None
        self._failed += 1
        if is_passing(cause) and (seconds := self._next_wait(cause)) is not None:
            await self._journal.append(self._event(error, status, seconds))
            self._waited += seconds
            return not await self._wait(seconds)
        if status in _NEXT_MODEL or is_passing(cause):
            for name in self._left:
                if await self._change_model(name, error, status):
                    return True
        raise error

    def _next_wait(self, cause: BaseException | None) -> float | None:
        """Return how long to wait; None where no attempt is left, or the wait is longer than the policy allows."""
        if self._failed >= self._policy.attempts:
            return None
        after = cause.retry_after if isinstance(cause, ModelAPIError) else None
        seconds = self._policy.wait_seconds(self._failed, retry_after=after, random=random.random())  # noqa: S311
        return None if self._waited + seconds > self._policy.max_seconds else seconds

    async def _change_model(self, name: str, error: ModelError, status: int | None) -> bool:
        before = self.model.model_name
        try:
            self._model = self._resolve(name)
        except BoughError as unusable:
            await self._journal.append(self._event(unusable, None, 0.0, model=name))
            return False
        await self._journal.append(self._event(error, status, 0.0, model=before, next_model=name))
        self._failed, self._waited = 0, 0.0
        return True

    def _event(
        self,
        error: BoughError,
        status: int | None,
        seconds: float,
        *,
        model: str | None = None,
        next_model: str | None = None,
    ) -> RequestRetried:
        return RequestRetried(
            attempt=self._failed,
            attempts=self._policy.attempts,
            status=status,
            error=error.message,
            wait_seconds=round(seconds, 3),
            model=model or self.model.model_name,
            next_model=next_model,
        )

    async def _wait(self, seconds: float) -> bool:
        """Wait, and return whether somebody asked for a pause meanwhile, in whichever process."""
        if self._journal.state.pausing:
            return True
        pause = asyncio.create_task(self._pause(self._journal.durable - 1))  # nothing between that look and this one
        try:
            done, _ = await asyncio.wait({pause}, timeout=seconds)
        finally:
            pause.cancel()
            with suppress(asyncio.CancelledError):
                await pause
        await self._journal.catch_up()
        return bool(done) or self._journal.state.pausing

    async def _pause(self, after: int) -> None:
        async for stored in self._journal.store.subscribe(self._journal.cid, after):
            if isinstance(stored.event, PauseRequested):
                return


def is_passing(cause: BaseException | None) -> bool:
    """Whether the same request may succeed later: an overloaded or failing server, a connection that broke."""
    if isinstance(cause, ModelHTTPError):
        return cause.status_code in _REPEATED or cause.status_code >= 500
    if isinstance(cause, ModelAPIError):
        return not isinstance(cause, ModelRequestRejectedError)
    return any(_is_lost(error) for error in _chain(cause))


def _is_lost(error: BaseException) -> bool:
    return isinstance(error, OSError) or type(error).__module__.partition(".")[0] in _LOST


def _chain(error: BaseException | None) -> Iterator[BaseException]:
    visited: set[int] = set()
    while error is not None and id(error) not in visited:
        visited.add(id(error))
        yield error
        error = error.__cause__
