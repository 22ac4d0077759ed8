"""The dispatcher that belongs to a store."""

from __future__ import annotations

from bough.errors import Unavailable
from bough.tasks.dispatch.dispatcher import Dispatcher
from bough.tasks.dispatch.local import LocalDispatcher
from bough.tasks.stores.postgres import TaskStorePostgres
from bough.tasks.stores.relational import RelationalTaskStore


def choose_dispatcher(store: RelationalTaskStore) -> Dispatcher:
    """Return the engine for a store on Postgres, which many machines share, and the local one for every other.

    Raises:
        Unavailable: The engine is not installed.
    """
    if not isinstance(store, TaskStorePostgres):
        return LocalDispatcher()
    try:
        from bough.tasks.dispatch.procrastinate import ProcrastinateDispatcher
    except ImportError as error:
        raise Unavailable(
            f"tasks on Postgres need the package {error.name}", hint="pip install 'bough[postgres]'"
        ) from error
    return ProcrastinateDispatcher(store)
