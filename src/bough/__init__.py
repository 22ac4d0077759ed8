"""bough: an agent runtime whose conversations fork like git branches.

Names are imported on first use, so `import bough` takes almost no time.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

__version__ = "0.4.0"

if TYPE_CHECKING:
    from bough.agents.agent import get_agent as get_agent
    from bough.agents.agent import run_agent as run_agent
    from bough.agents.context import ToolContext as ToolContext
    from bough.agents.model_analyzer import ModelAnalyzer as ModelAnalyzer
    from bough.agents.retry_policy import RetryPolicy as RetryPolicy
    from bough.agents.skills.tools import SkillToolset as SkillToolset
    from bough.agents.spec import AgentSpec as AgentSpec
    from bough.connect.a2a import A2AClientExtended as A2AClientExtended
    from bough.connect.config import A2AClientConfig as A2AClientConfig
    from bough.connect.config import MCPClientConfig as MCPClientConfig
    from bough.conversation import AsyncConversation as AsyncConversation
    from bough.conversation import Conversation as Conversation
    from bough.conversation import Delta as Delta
    from bough.conversation import ForkOverrides as ForkOverrides
    from bough.conversation import RunResult as RunResult
    from bough.conversation import Turn as Turn
    from bough.conversation import TurnRecord as TurnRecord
    from bough.conversation import WaitingCall as WaitingCall
    from bough.conversation.adapters.pydantic_messages import export_messages as export_messages
    from bough.conversation.adapters.pydantic_messages import import_messages as import_messages
    from bough.conversation.bisect import Bisection as Bisection
    from bough.conversation.explore import Exploration as Exploration
    from bough.conversation.explore import Variant as Variant
    from bough.conversation.log.condenser import KeepFirstCondenser as KeepFirstCondenser
    from bough.conversation.log.condenser import SummarizingCondenser as SummarizingCondenser
    from bough.conversation.once import arun as arun
    from bough.conversation.once import run as run
    from bough.effects import LostCall as LostCall
    from bough.effects import effect_key as effect_key
    from bough.events import ConversationFilter as ConversationFilter
    from bough.events import ErasureReceipt as ErasureReceipt
    from bough.events import EventStore as EventStore
    from bough.events import StoredEvent as StoredEvent
    from bough.events import open_store as open_store
    from bough.events import open_store_sync as open_store_sync
    from bough.events.record import SearchHit as SearchHit
    from bough.events.record import SearchPage as SearchPage
    from bough.execution import CodeExecutionInput as CodeExecutionInput
    from bough.execution import CodeExecutionResult as CodeExecutionResult
    from bough.execution import CodeExecutor as CodeExecutor
    from bough.execution import ContainerCodeExecutor as ContainerCodeExecutor
    from bough.execution import LocalSandboxCodeExecutor as LocalSandboxCodeExecutor
    from bough.execution import Mount as Mount
    from bough.execution import TaskContainerExecutor as TaskContainerExecutor
    from bough.execution import UnsafeLocalCodeExecutor as UnsafeLocalCodeExecutor
    from bough.guard import AllowList as AllowList
    from bough.guard import AlwaysConfirm as AlwaysConfirm
    from bough.guard import Budget as Budget
    from bough.guard import ConfirmRisky as ConfirmRisky
    from bough.guard import EnvSecret as EnvSecret
    from bough.guard import Hook as Hook
    from bough.guard import HookKind as HookKind
    from bough.guard import HookSet as HookSet
    from bough.guard import Limits as Limits
    from bough.guard import NeverConfirm as NeverConfirm
    from bough.guard import Risk as Risk
    from bough.guard import RuleAnalyzer as RuleAnalyzer
    from bough.guard import Secrets as Secrets
    from bough.orchestrator import NodeHook as NodeHook
    from bough.orchestrator import OrchestratorAgent as OrchestratorAgent
    from bough.settings import Price as Price
    from bough.settings import Settings as Settings
    from bough.skills import InputMetadata as InputMetadata
    from bough.skills import KeywordTrigger as KeywordTrigger
    from bough.skills import PathTrigger as PathTrigger
    from bough.skills import Skill as Skill
    from bough.skills import SkillMetadata as SkillMetadata
    from bough.skills import SkillRegistry as SkillRegistry
    from bough.skills import TaskTrigger as TaskTrigger
    from bough.tasks import TERMINAL_STATES as TERMINAL_STATES
    from bough.tasks import EventType as EventType
    from bough.tasks import Task as Task
    from bough.tasks import TaskBroker as TaskBroker
    from bough.tasks import TaskEvent as TaskEvent
    from bough.tasks import TaskFilter as TaskFilter
    from bough.tasks import TaskState as TaskState
    from bough.tasks import TaskStore as TaskStore
    from bough.tasks import TaskStoreJson as TaskStoreJson
    from bough.tasks import TaskStoreMemory as TaskStoreMemory
    from bough.tasks import TaskStorePostgres as TaskStorePostgres
    from bough.tasks import TaskStoreSqlite as TaskStoreSqlite
    from bough.tasks import Worker as Worker
else:
    from bough.lazy import lazy_exports

    __getattr__, __dir__, __all__ = lazy_exports(
        __name__,
        {
            "bough.agents.agent": "get_agent run_agent",
            "bough.agents.context": "ToolContext",
            "bough.agents.model_analyzer": "ModelAnalyzer",
            "bough.agents.retry_policy": "RetryPolicy",
            "bough.agents.skills.tools": "SkillToolset",
            "bough.agents.spec": "AgentSpec",
            "bough.connect.a2a": "A2AClientExtended",
            "bough.connect.config": "A2AClientConfig MCPClientConfig",
            "bough.conversation": (
                "AsyncConversation Conversation Delta ForkOverrides RunResult Turn TurnRecord WaitingCall"
            ),
            "bough.conversation.adapters.pydantic_messages": "export_messages import_messages",
            "bough.conversation.bisect": "Bisection",
            "bough.conversation.explore": "Exploration Variant",
            "bough.conversation.log.condenser": "KeepFirstCondenser SummarizingCondenser",
            "bough.conversation.once": "arun run",
            "bough.effects": "LostCall effect_key",
            "bough.events": "ConversationFilter ErasureReceipt EventStore StoredEvent open_store open_store_sync",
            "bough.events.record": "SearchHit SearchPage",
            "bough.execution": (
                "CodeExecutionInput CodeExecutionResult CodeExecutor ContainerCodeExecutor LocalSandboxCodeExecutor "
                "Mount TaskContainerExecutor UnsafeLocalCodeExecutor"
            ),
            "bough.guard": (
                "AllowList AlwaysConfirm Budget ConfirmRisky EnvSecret Hook HookKind HookSet Limits NeverConfirm Risk "
                "RuleAnalyzer Secrets"
            ),
            "bough.orchestrator": "NodeHook OrchestratorAgent",
            "bough.settings": "Price Settings",
            "bough.skills": "InputMetadata KeywordTrigger PathTrigger Skill SkillMetadata SkillRegistry TaskTrigger",
            "bough.tasks": (
                "TERMINAL_STATES EventType Task TaskBroker TaskEvent TaskFilter TaskState TaskStore TaskStoreJson "
                "TaskStoreMemory TaskStorePostgres TaskStoreSqlite Worker"
            ),
        },
    )
