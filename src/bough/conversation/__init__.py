"""Conversations: logs in use. What happened is in `events`; here it is run, watched and forked."""

from bough.conversation.conversation import AsyncConversation
from bough.conversation.fork import CutPoint, Pending
from bough.conversation.journal import Delta, Update
from bough.conversation.result import RunResult
from bough.conversation.state import State, ToolCall
from bough.conversation.sync import Conversation
from bough.conversation.view import View

__all__ = [
    "AsyncConversation",
    "Conversation",
    "CutPoint",
    "Delta",
    "Pending",
    "RunResult",
    "State",
    "ToolCall",
    "Update",
    "View",
]
