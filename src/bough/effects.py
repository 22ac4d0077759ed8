"""Keys of effects: one for each tool call of a conversation, the same after a crash, a retry and a resume."""

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
    """A tool call whose process died before the result was recorded; the effect may or may not have happened.

    Attributes:
        id: The id of the call.
        arguments: The arguments that the tool ran with.
        effect_key: The key that the tool had from `effect_key`.
    """

    id: str
    tool: str
    arguments: JsonObject
    effect_key: str


def effect_key() -> str:
    """Return the key of the tool call that is running, a UUID: the same however often the call has to be repeated.

    Pass it to a service as its idempotency key. A fork has other keys. A call that the model makes anew, after an error
    say, is another call and has another key.

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
        response: The seq of the model response that made the call: providers may repeat the ids of calls.
    """
    return str(uuid5(conversation, f"{response}/{call}"))


@contextmanager
def use_effect_key(key: str) -> Generator[None]:
    """Make `effect_key` return this key in the block, and in the threads and tasks that it starts."""
    token = _current.set(key)
    try:
        yield
    finally:
        _current.reset(token)


def find_effect_key() -> str | None:
    """Return the key of the running tool call, or None."""
    return _current.get()
