"""Who listens to a conversation in this process: told of durable events, and of text on its way."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from uuid import UUID

from bough.events.record import StoredEvent


@dataclass(frozen=True, kw_only=True)
class Delta:
    """A piece of a response while it is being written; never an event.

    Attributes:
        kind: `text` or `thinking`.
    """

    text: str
    kind: str = "text"


Update = StoredEvent | Delta
"""What a listener gets: durable events, and pieces of text on their way."""


class Audience:
    """The listeners of one conversation. None of them can hold up the run."""

    def __init__(self, cid: UUID) -> None:
        self._cid = cid
        self.listeners: list[Callable[[Update], None]] = []

    def tell(self, update: Update) -> None:
        """Tell every listener. One that raises is reported to the event loop and not told again."""
        for listener in tuple(self.listeners):
            try:
                listener(update)
            except Exception as error:  # noqa: BLE001 - the listeners' boundary: the event is in the log already
                self.listeners.remove(listener)
                told = {"message": f"a listener of conversation {self._cid} failed", "exception": error}
                asyncio.get_running_loop().call_exception_handler(told)
