"""Run tasks until a signal stops the process: the loop of `bough worker`."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Callable, Collection, Iterable

from bough.agents.spec import AgentSpec
from bough.tasks.agents import list_agents, name_private_queue
from bough.tasks.broker import TaskBroker
from bough.tasks.dispatch.sweep import Sweep


async def serve(
    broker: TaskBroker,
    *,
    queues: Collection[str],
    agents: Iterable[AgentSpec] = (),
    concurrency: int = 4,
    once: bool = False,
) -> None:
    """Run tasks until SIGTERM or SIGINT, then finish the running ones. A second signal hands them back.

    Args:
        broker: Must not be entered; closed on return.
        agents: Registered with the broker; their private queues and those of their sub-agents are served too.
        once: Exit when no task is waiting.
    """
    specs = list(agents)
    broker.register_agents(specs)
    served = [*queues, *sorted({name_private_queue(spec) for spec in list_agents(specs)})]
    stopping = asyncio.Event()

    def stop() -> None:
        if stopping.is_set():
            broker.worker.stop_all("hand_back")
        stopping.set()

    undo_signals = _handle_signals(stop)
    try:
        if once:
            await _run_pending(broker, served, concurrency, stopping)
        else:
            await broker.dispatcher.run(broker.worker, queues=served, concurrency=concurrency, stopping=stopping)
    finally:
        undo_signals()
        await broker.aclose()


async def _run_pending(broker: TaskBroker, queues: Collection[str], concurrency: int, stopping: asyncio.Event) -> None:
    """Run pending tasks, and running ones whose worker has died, until none can be claimed."""
    running: set[asyncio.Task[None]] = set()
    lost: list[str] = []
    sweep = Sweep(broker.worker, queues=queues, on_lost=lost.append, by_clock=True)
    while True:
        if not stopping.is_set():
            await sweep.once()
        while lost and len(running) < concurrency and not stopping.is_set():
            claim = await broker.worker.claim_task(lost.pop())
            if claim is not None:
                running.add(broker.worker.start(claim))
        while len(running) < concurrency and not stopping.is_set():
            claim = await broker.worker.claim_next(queues)
            if claim is None:
                break
            running.add(broker.worker.start(claim))
        if not running:
            return
        _, running = await asyncio.wait(running, return_when=asyncio.FIRST_COMPLETED)


def _handle_signals(stop: Callable[[], None]) -> Callable[[], None]:
    """Call `stop` on SIGTERM and SIGINT. Returns a function that removes the handlers."""
    loop = asyncio.get_running_loop()
    signals = (signal.SIGTERM, signal.SIGINT)
    for number in signals:
        loop.add_signal_handler(number, stop)

    def undo() -> None:
        for number in signals:
            loop.remove_signal_handler(number)

    return undo
