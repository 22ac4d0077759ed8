"""bough: an agent runtime whose conversations fork like git branches.

Names are imported when they are first used, so `import bough` costs next to nothing.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from bough.agents.skill_tools import SkillToolset
    from bough.agents.spec import AgentSpec
    from bough.config import Settings
    from bough.conversation import AsyncConversation, Conversation, Delta, RunResult
    from bough.errors import (
        BoughError,
        Conflict,
        ConnectError,
        CorruptLog,
        ExecutorError,
        Interrupted,
        InvalidInput,
        InvalidTransition,
        LimitExceeded,
        ModelError,
        NotFound,
        PermissionDenied,
        SandboxUnavailable,
        StoreError,
        Unavailable,
    )
    from bough.events import EventStore, StoredEvent, open_store
    from bough.events.model import (
        Condensed,
        ConversationStarted,
        ErrorRaised,
        ForkedFrom,
        HookRan,
        LimitReached,
        MessageStored,
        ModelResponded,
        PauseRequested,
        ScriptRan,
        SkillActivated,
        SkillSkipped,
        StateChanged,
        StuckDetected,
        TaskLinked,
        ToolCalled,
        ToolFailed,
        ToolInterrupted,
        ToolRejected,
        ToolReturned,
        Usage,
        UserMessage,
    )
    from bough.execution import (
        CodeExecutionInput,
        CodeExecutionResult,
        CodeExecutor,
        ContainerCodeExecutor,
        LocalSandboxCodeExecutor,
        UnsafeLocalCodeExecutor,
    )
    from bough.guard import AlwaysConfirm, ConfirmRisky, NeverConfirm
    from bough.skills import (
        InputMetadata,
        KeywordTrigger,
        PathTrigger,
        Skill,
        SkillMetadata,
        SkillRegistry,
        TaskTrigger,
    )

__version__ = "0.1.0"

_HOMES = {
    "AgentSpec": "bough.agents.spec",
    "AlwaysConfirm": "bough.guard",
    "AsyncConversation": "bough.conversation",
    "BoughError": "bough.errors",
    "CodeExecutionInput": "bough.execution",
    "CodeExecutionResult": "bough.execution",
    "CodeExecutor": "bough.execution",
    "Condensed": "bough.events.model",
    "ConfirmRisky": "bough.guard",
    "Conflict": "bough.errors",
    "ConnectError": "bough.errors",
    "ContainerCodeExecutor": "bough.execution",
    "Conversation": "bough.conversation",
    "ConversationStarted": "bough.events.model",
    "CorruptLog": "bough.errors",
    "Delta": "bough.conversation",
    "ErrorRaised": "bough.events.model",
    "EventStore": "bough.events",
    "ExecutorError": "bough.errors",
    "ForkedFrom": "bough.events.model",
    "HookRan": "bough.events.model",
    "InputMetadata": "bough.skills",
    "Interrupted": "bough.errors",
    "InvalidInput": "bough.errors",
    "InvalidTransition": "bough.errors",
    "KeywordTrigger": "bough.skills",
    "LimitExceeded": "bough.errors",
    "LimitReached": "bough.events.model",
    "LocalSandboxCodeExecutor": "bough.execution",
    "MessageStored": "bough.events.model",
    "ModelError": "bough.errors",
    "ModelResponded": "bough.events.model",
    "NeverConfirm": "bough.guard",
    "NotFound": "bough.errors",
    "PathTrigger": "bough.skills",
    "PauseRequested": "bough.events.model",
    "PermissionDenied": "bough.errors",
    "RunResult": "bough.conversation",
    "SandboxUnavailable": "bough.errors",
    "ScriptRan": "bough.events.model",
    "Settings": "bough.config",
    "Skill": "bough.skills",
    "SkillActivated": "bough.events.model",
    "SkillMetadata": "bough.skills",
    "SkillRegistry": "bough.skills",
    "SkillSkipped": "bough.events.model",
    "SkillToolset": "bough.agents.skill_tools",
    "StateChanged": "bough.events.model",
    "StoreError": "bough.errors",
    "StoredEvent": "bough.events",
    "StuckDetected": "bough.events.model",
    "TaskLinked": "bough.events.model",
    "TaskTrigger": "bough.skills",
    "ToolCalled": "bough.events.model",
    "ToolFailed": "bough.events.model",
    "ToolInterrupted": "bough.events.model",
    "ToolRejected": "bough.events.model",
    "ToolReturned": "bough.events.model",
    "Unavailable": "bough.errors",
    "UnsafeLocalCodeExecutor": "bough.execution",
    "Usage": "bough.events.model",
    "UserMessage": "bough.events.model",
    "open_store": "bough.events",
}

__all__ = [
    "AgentSpec",
    "AlwaysConfirm",
    "AsyncConversation",
    "BoughError",
    "CodeExecutionInput",
    "CodeExecutionResult",
    "CodeExecutor",
    "Condensed",
    "ConfirmRisky",
    "Conflict",
    "ConnectError",
    "ContainerCodeExecutor",
    "Conversation",
    "ConversationStarted",
    "CorruptLog",
    "Delta",
    "ErrorRaised",
    "EventStore",
    "ExecutorError",
    "ForkedFrom",
    "HookRan",
    "InputMetadata",
    "Interrupted",
    "InvalidInput",
    "InvalidTransition",
    "KeywordTrigger",
    "LimitExceeded",
    "LimitReached",
    "LocalSandboxCodeExecutor",
    "MessageStored",
    "ModelError",
    "ModelResponded",
    "NeverConfirm",
    "NotFound",
    "PathTrigger",
    "PauseRequested",
    "PermissionDenied",
    "RunResult",
    "SandboxUnavailable",
    "ScriptRan",
    "Settings",
    "Skill",
    "SkillActivated",
    "SkillMetadata",
    "SkillRegistry",
    "SkillSkipped",
    "SkillToolset",
    "StateChanged",
    "StoreError",
    "StoredEvent",
    "StuckDetected",
    "TaskLinked",
    "TaskTrigger",
    "ToolCalled",
    "ToolFailed",
    "ToolInterrupted",
    "ToolRejected",
    "ToolReturned",
    "Unavailable",
    "UnsafeLocalCodeExecutor",
    "Usage",
    "UserMessage",
    "open_store",
]


def __getattr__(name: str) -> Any:
    try:
        home = _HOMES[name]
    except KeyError:
        raise AttributeError(f"module 'bough' has no attribute {name!r}") from None
    return getattr(import_module(home), name)


def __dir__() -> list[str]:
    return sorted([*__all__, "__version__"])
