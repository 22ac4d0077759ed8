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
    from bough.errors import BoughError
    from bough.events import EventStore, StoredEvent, open_store
    from bough.events.model import UserMessage
    from bough.execution import (
        CodeExecutionInput,
        CodeExecutionResult,
        CodeExecutor,
        ContainerCodeExecutor,
        LocalSandboxCodeExecutor,
        UnsafeLocalCodeExecutor,
    )
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
    "AsyncConversation": "bough.conversation",
    "BoughError": "bough.errors",
    "CodeExecutionInput": "bough.execution",
    "CodeExecutionResult": "bough.execution",
    "CodeExecutor": "bough.execution",
    "ContainerCodeExecutor": "bough.execution",
    "Conversation": "bough.conversation",
    "Delta": "bough.conversation",
    "EventStore": "bough.events",
    "InputMetadata": "bough.skills",
    "KeywordTrigger": "bough.skills",
    "LocalSandboxCodeExecutor": "bough.execution",
    "PathTrigger": "bough.skills",
    "RunResult": "bough.conversation",
    "Settings": "bough.config",
    "Skill": "bough.skills",
    "SkillMetadata": "bough.skills",
    "SkillRegistry": "bough.skills",
    "SkillToolset": "bough.agents.skill_tools",
    "StoredEvent": "bough.events",
    "TaskTrigger": "bough.skills",
    "UnsafeLocalCodeExecutor": "bough.execution",
    "UserMessage": "bough.events.model",
    "open_store": "bough.events",
}

__all__ = [
    "AgentSpec",
    "AsyncConversation",
    "BoughError",
    "CodeExecutionInput",
    "CodeExecutionResult",
    "CodeExecutor",
    "ContainerCodeExecutor",
    "Conversation",
    "Delta",
    "EventStore",
    "InputMetadata",
    "KeywordTrigger",
    "LocalSandboxCodeExecutor",
    "PathTrigger",
    "RunResult",
    "Settings",
    "Skill",
    "SkillMetadata",
    "SkillRegistry",
    "SkillToolset",
    "StoredEvent",
    "TaskTrigger",
    "UnsafeLocalCodeExecutor",
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
