"""Runs that are asked for over the wire: started, joined, paused, interrupted, approved."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from uuid import UUID

from bough.conversation import AsyncConversation, Delta
from bough.errors import BoughError, Conflict, LimitExceeded
from bough.events.model import PauseRequested
from bough.events.store import EventStore
from bough.server.forms.info import RunInfo
from bough.server.live.broadcast import Broadcasts
from bough.server.metrics import Metrics
from bough.server.settings import ServerSettings
from bough.types import new_id

_LOG = logging.getLogger("bough.server.runs")


@dataclass(kw_only=True)
class _Live:
    """A run in this process."""

    info: RunInfo
    owner: str | None
    task: asyncio.Task[None] | None = None
    conversation: AsyncConversation | None = None


class Runs:
    """The runs of this process, one a conversation.

    Args:
        reopen: Gives the conversation in use.
        broadcasts: Told the pieces of a response as they come, and when a run has ended.
    """

    def __init__(
        self,
        store: EventStore,
        reopen: Callable[[UUID], Awaitable[AsyncConversation]],
        server: ServerSettings,
        metrics: Metrics,
        broadcasts: Broadcasts,
    ) -> None:
        self._store = store
        self._reopen = reopen
        self._server = server
        self._metrics = metrics
        self._broadcasts = broadcasts
        self._live: dict[UUID, _Live] = {}
        self._latest: dict[UUID, RunInfo] = {}
        self._slots = asyncio.Semaphore(server.concurrency)

    def latest(self, cid: UUID) -> RunInfo | None:
        """Return the latest run of a conversation that this process knows of."""
        live = self._live.get(cid)
        return live.info if live else self._latest.get(cid)

    def is_live(self, cid: UUID) -> bool:
        """Whether a run of the conversation is pending or running here."""
        return cid in self._live

    def start(self, cid: UUID, owner: str | None, tenant: str) -> UUID:
        """Start a run, and return its id.

        Raises:
            Conflict: It is running.
            LimitExceeded: The tenant has as many runs as it may have.
        """
        if cid in self._live:
            raise Conflict("the conversation is running already", hint="wait for that run, or interrupt it")
        bound = self._server.limits_of(tenant).runs
        if sum(live.owner == owner for live in self._live.values()) >= bound:
            self._metrics.limited.labels("runs").inc()
            raise LimitExceeded(f"{bound} runs are going on", hint="wait for one to end", details={"limit": "runs"})
        live = _Live(info=RunInfo(task=new_id(), state="pending"), owner=owner)
        self._live[cid] = live
        live.task = asyncio.create_task(self._run(cid, live), name=f"server run {cid}")
        return live.info.task

    async def wait(self, cid: UUID, seconds: float) -> None:
        """Return when the run of a conversation has ended, or after `seconds`."""
        live = self._live.get(cid)
        if live is not None and live.task is not None:
            await asyncio.wait({live.task}, timeout=seconds)

    async def pause(self, cid: UUID, *, by: str, reason: str) -> None:
        """Ask a run to stop at its next step; nothing happens where none runs."""
        if cid in self._live:
            await self._store.append(cid, [PauseRequested(by=by, reason=reason)])

    async def interrupt(self, cid: UUID) -> None:
        """Stop a run now, its tools killed; nothing happens where none runs."""
        live = self._live.get(cid)
        if live is None or live.task is None:
            return
        if live.conversation is None:
            live.task.cancel()
        else:
            await live.conversation.interrupt()

    async def aclose(self, seconds: float) -> None:
        """Let runs end within `seconds`, then stop them: they are paused, and go on when they are run again."""
        tasks = [live.task for live in self._live.values() if live.task is not None]
        if tasks:
            await asyncio.wait(tasks, timeout=seconds)
        for cid in list(self._live):
            await self.interrupt(cid)
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _run(self, cid: UUID, live: _Live) -> None:
        state, started = "failed", asyncio.get_running_loop().time()
        try:
            async with self._slots:
                live.info = live.info.model_copy(update={"state": "running"})
                conversation = await self._reopen(cid)
                async with conversation:
                    live.conversation = conversation
                    async for update in conversation.run_stream():
                        if isinstance(update, Delta):
                            self._broadcasts.publish(cid, update.kind, update.text)
                    state = "completed"
        except BoughError as error:
            _LOG.info("run of %s failed: %s", cid, error.code)
        finally:
            self._latest[cid] = live.info.model_copy(update={"state": state})
            del self._live[cid]
            self._broadcasts.publish_run_end(cid, started)  # behind the removal: who reads now finds no live run
