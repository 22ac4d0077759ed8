"""Conversations: logs in use. What happened is in `events`; here it is run, watched and forked."""

from bough.conversation.conversation import AsyncConversation
from bough.conversation.fork.compare import Comparison
from bough.conversation.fork.cut import CutPoint, Pending, Turn
from bough.conversation.fork.fork import ForkOverrides
from bough.conversation.fork.workspace import WorkspacePolicy
from bough.conversation.log.journal import Delta, Update
from bough.conversation.log.state import State, ToolCall
from bough.conversation.log.view import View
from bough.conversation.result import RunResult
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
    "WorkspacePolicy",
]
