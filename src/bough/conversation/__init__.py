"""Conversations: logs in use. What happened is in `events`; here it is run, watched and forked.

Names are loaded on first use: who only reads what a log says does not load what runs it.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from bough.conversation.conversation import AsyncConversation
    from bough.conversation.fork.compare import Comparison
    from bough.conversation.fork.cut import CutPoint, Pending, Turn
    from bough.conversation.fork.request import ForkOverrides
    from bough.conversation.fork.workspace import WorkspacePolicy
    from bough.conversation.log.journal import Delta, Update
    from bough.conversation.log.state import State, ToolCall
    from bough.conversation.log.view import View
    from bough.conversation.result import RunResult, WaitingCall
    from bough.conversation.sync import Conversation

__all__ = [
    "AsyncConversation",
    "Comparison",
    "Conversation",
    "CutPoint",
    "Delta",
    "ForkOverrides",
    "Pending",
    "RunResult",
    "State",
    "ToolCall",
    "Turn",
    "Update",
    "View",
    "WaitingCall",
    "WorkspacePolicy",
]

_HOMES = {
    "AsyncConversation": "conversation",
    "Comparison": "fork.compare",
    "Conversation": "sync",
    "CutPoint": "fork.cut",
    "Delta": "log.journal",
    "ForkOverrides": "fork.request",
    "Pending": "fork.cut",
    "RunResult": "result",
    "State": "log.state",
    "ToolCall": "log.state",
    "Turn": "fork.cut",
    "Update": "log.journal",
    "View": "log.view",
    "WaitingCall": "result",
    "WorkspacePolicy": "fork.workspace",
}


def __getattr__(name: str) -> Any:
    """Import what is asked for when it is asked for."""
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_HOMES[name]}"), name)
