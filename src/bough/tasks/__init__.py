"""Tasks: work that survives the process which asked for it.

A task is a conversation with a lifecycle: one run of it, from asked to ended. Its events are a range of that log, its
claim is that log's lease, its cost is that log's usage; a narrow row says who is next and in which state.

Names are loaded on first use: who only looks at tasks does not load what runs them.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from bough.tasks.broker import TaskBroker
    from bough.tasks.model import EventType, Task, TaskEvent
    from bough.tasks.state import TERMINAL_STATES, TaskState
    from bough.tasks.store import Claim, TaskFilter, TaskPage, TaskStore
    from bough.tasks.stores.json_files import TaskStoreJson
    from bough.tasks.stores.memory import TaskStoreMemory
    from bough.tasks.stores.postgres import TaskStorePostgres
    from bough.tasks.stores.sqlite import TaskStoreSqlite
    from bough.tasks.worker import Worker

__all__ = [
    "TERMINAL_STATES",
    "Claim",
    "EventType",
    "Task",
    "TaskBroker",
    "TaskEvent",
    "TaskFilter",
    "TaskPage",
    "TaskState",
    "TaskStore",
    "TaskStoreJson",
    "TaskStoreMemory",
    "TaskStorePostgres",
    "TaskStoreSqlite",
    "Worker",
]

_HOMES = {
    "TERMINAL_STATES": "state",
    "Claim": "store",
    "EventType": "model",
    "Task": "model",
    "TaskBroker": "broker",
    "TaskEvent": "model",
    "TaskFilter": "store",
    "TaskPage": "store",
    "TaskState": "state",
    "TaskStore": "store",
    "TaskStoreJson": "stores.json_files",
    "TaskStoreMemory": "stores.memory",
    "TaskStorePostgres": "stores.postgres",
    "TaskStoreSqlite": "stores.sqlite",
    "Worker": "worker",
}


def __getattr__(name: str) -> Any:
    """Import what is asked for when it is asked for."""
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_HOMES[name]}"), name)
