"""Conversations: logs in use. What happened is in `events`; here it is run, watched and forked."""

from bough.conversation.branch import ForkOverrides
from bough.conversation.compare import Comparison
from bough.conversation.conversation import AsyncConversation
from bough.conversation.fork.cut import CutPoint, Pending, Turn
from bough.conversation.journal import Delta, Update
from bough.conversation.result import RunResult
from bough.conversation.state import State, ToolCall
from bough.conversation.sync import Conversation
from bough.conversation.view import View
from bough.conversation.workspace import WorkspacePolicy

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
