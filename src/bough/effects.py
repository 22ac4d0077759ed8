"""Effect keys: one for each tool call of a conversation, unchanged after a crash, a retry or a resume."""

from __future__ import annotations

from collections.abc import Generator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from uuid import UUID, uuid5

from bough.errors import Unavailable
from bough.types import JsonObject

_current: ContextVar[str | None] = ContextVar("effect_key", default=None)


@dataclass(frozen=True, kw_only=True)
class LostCall:
    """A tool call whose process died before the result was recorded; its effect may have happened or not.

    Attributes:
        id: The id of the call.
        arguments: The arguments that the tool ran with.
        effect_key: The key that `effect_key` returned to the tool.
    """

    id: str
    tool: str
    arguments: JsonObject
    effect_key: str


def effect_key() -> str:
    """Return the key of the running tool call, a UUID that remains the same when the call is repeated.

    Pass it to a service as its idempotency key. Calls of a fork have different keys. If the model calls the tool again,
    for example after an error, this is a new call with a new key.

    Raises:
        Unavailable: No tool call of a conversation is running here.
    """
    key = _current.get()
    if key is None:
        raise Unavailable("no tool call is running", hint="call effect_key() in a tool that a conversation runs")
    return key


def make_effect_key(conversation: UUID, response: int | None, call: str) -> str:
    """Return the key of a call.

    Args:
        response: The seq of the model response that made the call. Needed because providers may reuse ids of calls.
    """
    return str(uuid5(conversation, f"{response}/{call}"))


@contextmanager
def use_effect_key(key: str) -> Generator[None]:
    """Make `effect_key` return this key in the block, and in the threads and tasks that the block starts."""
    token = _current.set(key)
    try:
        yield
    finally:
        _current.reset(token)


def find_effect_key() -> str | None:
    """Return the key of the running tool call, or None."""
    return _current.get()
