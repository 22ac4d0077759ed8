"""Which queues a broker serves."""

from __future__ import annotations

from collections.abc import Collection, Mapping

from bough.agents.spec import AgentSpec
from bough.tasks.agents import name_private_queue


class ServedQueues(Collection[str]):
    """The queues a broker serves: those it was given, and the private ones of the agents it registered so far."""

    def __init__(self, queues: Collection[str], agents: Mapping[str, AgentSpec]) -> None:
        self._queues = queues
        self._agents = agents

    def _all(self) -> list[str]:
        return [*self._queues, *map(name_private_queue, self._agents.values())] if self._queues else []

    def __iter__(self):
        return iter(self._all())

    def __len__(self) -> int:
        return len(self._all())

    def __contains__(self, queue: object) -> bool:
        return queue in self._all()
