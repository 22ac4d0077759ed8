"""A run in a container that stays: what the engine started for it, and how all that it left behind is ended."""

# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false
from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

from bough.execution.container.engine import engine_errors, is_refusal


class RunByExec:
    """A run whose first process was started in a container that stays.

    Args:
        id: Of what the engine started.
        resting: The processes that were there before the run, and stay.
        restart: Ends every process of the container, and starts it again.
    """

    def __init__(self, engine: Any, container: Any, id: str, resting: set[int], *, restart: Callable[[], None]) -> None:
        self._engine, self._container, self._id = engine, container, id
        self._resting, self._restart = resting, restart
        self._lock = threading.Lock()
        self._is_settled = False

    def first_process(self) -> int:
        """Return the process that the engine started."""
        try:
            return int(self._engine.api.exec_inspect(self._id)["Pid"])
        except engine_errors():
            return 0

    def has_ended(self) -> bool:
        """Whether that process is gone."""
        try:
            return not self._engine.api.exec_inspect(self._id)["Running"]
        except engine_errors() as error:
            return is_refusal(error)

    def settle(self) -> None:
        """End what the program left behind, if it left anything."""
        with self._lock:
            left = list_processes(self._container) - self._resting - {self.first_process()}
            if left and not self._is_settled:
                self._restart()
            self._is_settled = True

    def end(self) -> None:
        """End every process of the container, unless the run has been settled."""
        with self._lock:
            if not self._is_settled:
                self._restart()
            self._is_settled = True


def list_processes(container: Any) -> set[int]:
    """Return the processes in a container as this machine numbers them. Blocks."""
    found = container.top(ps_args="-eo pid")
    return {int(row[0]) for row in found["Processes"]}
