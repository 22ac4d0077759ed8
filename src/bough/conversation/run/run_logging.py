"""What a run tells Python's logging: that it started, each durable event, how it ended. Numbers and names, no contents.

Everything goes to the logger `bough.run` and carries its fields as attributes of the record (`conversation`, `run`,
`event`, `seq`, `duration_seconds`, …), so that any handler can use them; `bough.log.JsonFormatter` writes them all.
Texts, arguments, results and messages of errors are in no field: they may hold secrets, and the log has them.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Generator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any
from uuid import UUID

from bough.conversation.log.journal import Journal
from bough.conversation.log.listeners import Update
from bough.conversation.result import RunResult
from bough.errors import BoughError
from bough.events.model import (
    ErrorRaised,
    Event,
    HookRan,
    LimitReached,
    ModelResponded,
    ScriptRan,
    ToolCalled,
    ToolFailed,
    ToolInterrupted,
    ToolRejected,
    ToolReturned,
)
from bough.events.record import StoredEvent

NAME = "bough.run"


@dataclass
class RunLogger:
    """The log of one run, to be told how it ended."""

    fields: dict[str, Any]
    result: RunResult | None = None

    def tell(self, update: Update) -> None:
        """Log a durable event."""
        if isinstance(update, StoredEvent):
            event = {"event": update.kind, "seq": update.seq, **_numbers(update.event)}
            logging.getLogger(NAME).info("event %s", update.kind, extra=self.fields | event)


@contextmanager
def log_run(journal: Journal, *, run: UUID, agent: str, model: str | None) -> Generator[RunLogger]:
    """Log a run, and the error that leaves the block by its code. Costs nothing where nobody collects."""
    log = logging.getLogger(NAME)
    book = RunLogger({"conversation": str(journal.cid), "run": str(run)})
    if not log.isEnabledFor(logging.INFO):
        yield book
        return
    started = time.monotonic()
    log.info("run started", extra=book.fields | {"agent": agent, "model": model})
    journal.listeners.append(book.tell)
    how: dict[str, Any] = {"status": "interrupted"}
    try:
        yield book
        how = {} if book.result is None else {"status": book.result.status, "steps": book.result.steps}
    except BoughError as error:
        how = {"status": "error", "code": error.code}
        raise
    finally:
        if book.tell in journal.listeners:
            journal.listeners.remove(book.tell)
        duration = {"duration_seconds": round(time.monotonic() - started, 6)}
        log.info("run ended", extra=book.fields | how | duration)


def _numbers(event: Event) -> dict[str, Any]:
    match event:
        case ModelResponded():
            used = event.usage
            tokens = {"input_tokens": used.input_tokens, "output_tokens": used.output_tokens, "cost_usd": used.cost_usd}
            return {"model": event.model, "duration_seconds": event.latency_seconds, **tokens}
        case ToolReturned() | ToolFailed():
            return {"tool": event.tool, "call": event.tool_call_id, "duration_seconds": event.duration_seconds}
        case ToolCalled() | ToolRejected() | ToolInterrupted():
            return {"tool": event.tool, "call": event.tool_call_id}
        case HookRan():
            return {"hook": event.hook, "verdict": event.verdict, "duration_seconds": event.duration_seconds}
        case ScriptRan():
            return {"skill": event.skill, "script": event.script, "exit_code": event.exit_code}
        case LimitReached():
            return {"limit": event.limit}
        case ErrorRaised():
            return {"code": event.code}
        case _:
            return {}
