"""Conversations: running, watching and forking the logs that are stored by `events`.

Names are imported on first use, so that reading a log does not import the code that runs it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from bough.conversation.conversation import AsyncConversation as AsyncConversation
    from bough.conversation.fork.compare import Comparison as Comparison
    from bough.conversation.fork.request import CutPoint as CutPoint
    from bough.conversation.fork.request import ForkOverrides as ForkOverrides
    from bough.conversation.fork.request import Pending as Pending
    from bough.conversation.fork.workspace import WorkspacePolicy as WorkspacePolicy
    from bough.conversation.log.journal import Delta as Delta
    from bough.conversation.log.journal import Update as Update
    from bough.conversation.log.state import State as State
    from bough.conversation.log.state import ToolCall as ToolCall
    from bough.conversation.log.turns import Turn as Turn
    from bough.conversation.log.turns import TurnCall as TurnCall
    from bough.conversation.log.turns import TurnRecord as TurnRecord
    from bough.conversation.log.view import View as View
    from bough.conversation.result import RunResult as RunResult
    from bough.conversation.result import WaitingCall as WaitingCall
    from bough.conversation.sync import Conversation as Conversation
else:
    from bough.lazy import lazy_exports

    __getattr__, __dir__, __all__ = lazy_exports(
        __name__,
        {
            "bough.conversation.conversation": "AsyncConversation",
            "bough.conversation.fork.compare": "Comparison",
            "bough.conversation.fork.request": "CutPoint ForkOverrides Pending",
            "bough.conversation.fork.workspace": "WorkspacePolicy",
            "bough.conversation.log.journal": "Delta Update",
            "bough.conversation.log.state": "State ToolCall",
            "bough.conversation.log.turns": "Turn TurnCall TurnRecord",
            "bough.conversation.log.view": "View",
            "bough.conversation.result": "RunResult WaitingCall",
            "bough.conversation.sync": "Conversation",
        },
    )
