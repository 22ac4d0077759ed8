"""The event log: events, stores, and the sharing of events between forks.

Names are imported on first use, so that listing conversations does not load the event model.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from bough.events.erasure.receipt import ErasureReceipt as ErasureReceipt
    from bough.events.model import CheckRan as CheckRan
    from bough.events.model import Condensed as Condensed
    from bough.events.model import ConversationStarted as ConversationStarted
    from bough.events.model import ErrorRaised as ErrorRaised
    from bough.events.model import FilePart as FilePart
    from bough.events.model import FilesKept as FilesKept
    from bough.events.model import ForkedFrom as ForkedFrom
    from bough.events.model import HookRan as HookRan
    from bough.events.model import ImagePart as ImagePart
    from bough.events.model import Imported as Imported
    from bough.events.model import LimitReached as LimitReached
    from bough.events.model import ModelResponded as ModelResponded
    from bough.events.model import OutputGiven as OutputGiven
    from bough.events.model import PauseRequested as PauseRequested
    from bough.events.model import RequestRetried as RequestRetried
    from bough.events.model import RulesChanged as RulesChanged
    from bough.events.model import ScriptRan as ScriptRan
    from bough.events.model import SkillActivated as SkillActivated
    from bough.events.model import SkillSkipped as SkillSkipped
    from bough.events.model import StateChanged as StateChanged
    from bough.events.model import StuckDetected as StuckDetected
    from bough.events.model import TaskChanged as TaskChanged
    from bough.events.model import TaskEnded as TaskEnded
    from bough.events.model import TaskLinked as TaskLinked
    from bough.events.model import TaskNoted as TaskNoted
    from bough.events.model import TextPart as TextPart
    from bough.events.model import ToolCalled as ToolCalled
    from bough.events.model import ToolFailed as ToolFailed
    from bough.events.model import ToolInterrupted as ToolInterrupted
    from bough.events.model import ToolRejected as ToolRejected
    from bough.events.model import ToolReturned as ToolReturned
    from bough.events.model import Usage as Usage
    from bough.events.model import UsageAdded as UsageAdded
    from bough.events.model import UserMessage as UserMessage
    from bough.events.open import open_store as open_store
    from bough.events.open import open_store_sync as open_store_sync
    from bough.events.record import ConversationFilter as ConversationFilter
    from bough.events.record import ConversationRecord as ConversationRecord
    from bough.events.record import Lease as Lease
    from bough.events.record import Page as Page
    from bough.events.record import StoredEvent as StoredEvent
    from bough.events.side_tables import SideTables as SideTables
    from bough.events.side_tables import Tables as Tables
    from bough.events.store import Cut as Cut
    from bough.events.store import EventStore as EventStore
    from bough.events.store import StoreAdmin as StoreAdmin
    from bough.events.stores.postgres import PostgresEventStore as PostgresEventStore
    from bough.events.stores.sqlite import SqliteEventStore as SqliteEventStore
else:
    from bough.lazy import lazy_exports

    __getattr__, __dir__, __all__ = lazy_exports(
        __name__,
        {
            "bough.events.side_tables": "SideTables Tables",
            "bough.events.model": (
                "CheckRan Condensed ConversationStarted ErrorRaised FilePart FilesKept ForkedFrom HookRan ImagePart "
                "Imported LimitReached ModelResponded OutputGiven PauseRequested RequestRetried RulesChanged "
                "ScriptRan SkillActivated SkillSkipped StateChanged StuckDetected TaskChanged TaskEnded TaskLinked "
                "TaskNoted TextPart ToolCalled ToolFailed ToolInterrupted ToolRejected ToolReturned Usage UsageAdded "
                "UserMessage"
            ),
            "bough.events.open": "open_store open_store_sync",
            "bough.events.erasure.receipt": "ErasureReceipt",
            "bough.events.record": "ConversationFilter ConversationRecord Lease Page StoredEvent",
            "bough.events.store": "Cut EventStore StoreAdmin",
            "bough.events.stores.postgres": "PostgresEventStore",
            "bough.events.stores.sqlite": "SqliteEventStore",
        },
    )
