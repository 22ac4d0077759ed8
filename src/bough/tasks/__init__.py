"""Tasks: work that survives the process that submitted it.

A task is one run of a conversation, from submission to its end. Its events are a range of the conversation's log, its
claim is the log's lease, its cost is the log's usage. A row per task has its state and its place in the queue.

Names are imported on first use, so that code that only reads tasks does not load what runs them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from bough.tasks.broker import TaskBroker as TaskBroker
    from bough.tasks.model import EventType as EventType
    from bough.tasks.model import Task as Task
    from bough.tasks.model import TaskEvent as TaskEvent
    from bough.tasks.state import TERMINAL_STATES as TERMINAL_STATES
    from bough.tasks.state import TaskState as TaskState
    from bough.tasks.store import Claim as Claim
    from bough.tasks.store import TaskFilter as TaskFilter
    from bough.tasks.store import TaskPage as TaskPage
    from bough.tasks.store import TaskStore as TaskStore
    from bough.tasks.stores.backends import TaskStoreMemory as TaskStoreMemory
    from bough.tasks.stores.backends import TaskStorePostgres as TaskStorePostgres
    from bough.tasks.stores.backends import TaskStoreSqlite as TaskStoreSqlite
    from bough.tasks.stores.json_files import TaskStoreJson as TaskStoreJson
    from bough.tasks.worker import Worker as Worker
else:
    from bough.lazy import lazy_exports

    __getattr__, __dir__, __all__ = lazy_exports(
        __name__,
        {
            "bough.tasks.broker": "TaskBroker",
            "bough.tasks.model": "EventType Task TaskEvent",
            "bough.tasks.state": "TERMINAL_STATES TaskState",
            "bough.tasks.store": "Claim TaskFilter TaskPage TaskStore",
            "bough.tasks.stores.backends": "TaskStoreMemory TaskStorePostgres TaskStoreSqlite",
            "bough.tasks.stores.json_files": "TaskStoreJson",
            "bough.tasks.worker": "Worker",
        },
    )
