"""What the erasure of a conversation removed, and what it did not reach."""

from __future__ import annotations

import json
from dataclasses import dataclass
from datetime import datetime
from typing import NamedTuple
from uuid import UUID

from bough.events.side_tables import SideTables
from bough.types import JsonObject

ERASURES = SideTables("erasure", "bough.events.erasure")
"""The side table with the receipts."""

NOT_COVERED = (
    "exports and backups made before, and copies of the store",
    "what other conversations wrote about it: summaries, grafts, titles and tags of forks",
    "conversations of its sub-agents, if it had been deleted before",
    "files of its working folder, unless the folder was made for it, and what others that share it kept of them",
    "what model providers, webhooks and remote tools received",
    "sums of its usage by day, agent, model and key, and in budgets, with its id",
    "blocks that the file system freed but did not overwrite",
)
"""What no erasure reaches, whatever the store."""

KEPT_FILES = "kept files of working folders"
"""Begins the entry of `not_covered` that says why they were not collected."""

NOT_COMPACTED = "free space of the store"
"""Begins the entry of `not_covered` that says why the store was not compacted."""

POSTGRES_NOT_COVERED = (
    "WAL segments, their archives and replicas: the operator lets them expire",
    "statistics of the query planner, until the server's next autovacuum of its catalog",
)


class Tenant(NamedTuple):
    """The owner of conversations on a server; None for the operator's."""

    owner: str | None


@dataclass(frozen=True, kw_only=True)
class ErasureReceipt:
    """What the erasure of a conversation removed. The store keeps it; it has no content of the conversation.

    An erasure of several conversations has one receipt, which each of their ids returns.

    Attributes:
        id: Id of the conversation.
        erased_at: When the content was removed, UTC.
        events: Own events whose content was removed.
        bytes: Payload bytes of these events.
        blobs: Images and files that no other conversation uses.
        kept_states: Derived states of its tree, removed because they may repeat its content.
        tasks: Rows of its tasks.
        shared_events: Its events that remain as stubs without content (kind, time, names of tools and models), because
            living forks count them in their logs.
        forks: The living forks that read these stubs.
        conversations: The conversations that were erased with it: those of its sub-agents and, if requested, its forks.
            The numbers above are of all of them.
        is_compacted: Whether the store's files were rewritten, so that free space has no remains. If not, `not_covered`
            says why; erasing again repeats it.
        not_covered: What the erasure does not reach.
        owner: The tenant of the conversation on a server.
    """

    id: UUID
    erased_at: datetime
    events: int
    bytes: int
    blobs: int = 0
    kept_states: int = 0
    tasks: int = 0
    shared_events: int = 0
    forks: tuple[UUID, ...] = ()
    conversations: tuple[UUID, ...] = ()
    is_compacted: bool = False
    not_covered: tuple[str, ...] = NOT_COVERED
    owner: str | None = None

    def __str__(self) -> str:
        lines = [
            f"{self.id} erased at {self.erased_at.isoformat(timespec='seconds')}",
            f"removed: {self.events} events ({self.bytes} bytes), {self.blobs} blobs, {self.kept_states} kept states, "
            f"{self.tasks} tasks",
            f"compacted: {'yes' if self.is_compacted else 'no'}",
        ]
        if self.conversations:
            lines.insert(1, f"erased with it: {', '.join(map(str, self.conversations))}")
        if self.forks:
            lines.append(f"stubs without content: {self.shared_events}, read by {', '.join(map(str, self.forks))}")
        return "\n".join([*lines, "not covered:", *(f"  {name}" for name in self.not_covered)])

    def to_json(self) -> JsonObject:
        """Return the receipt as JSON, without the owner."""
        fields = {name: value for name, value in vars(self).items() if name != "owner"}
        return fields | {
            "id": str(self.id),
            "erased_at": self.erased_at.isoformat(),
            "forks": [str(fork) for fork in self.forks],
            "conversations": [str(conversation) for conversation in self.conversations],
            "not_covered": list(self.not_covered),
        }

    @classmethod
    def from_json(cls, document: JsonObject) -> ErasureReceipt:
        """Return the receipt of a document that `to_json` made."""
        fields: JsonObject = {
            "id": UUID(document["id"]),
            "erased_at": datetime.fromisoformat(document["erased_at"]),
            "forks": tuple(UUID(fork) for fork in document["forks"]),
            # Receipts of older versions have none.
            "conversations": tuple(UUID(conversation) for conversation in document.get("conversations", ())),
            "not_covered": tuple(document["not_covered"]),
        }
        return cls(**{**document, **fields})

    def dump(self) -> str:
        """Return the text that stores keep, with the owner."""
        return json.dumps(self.to_json() | {"owner": self.owner})

    @classmethod
    def load(cls, text: str) -> ErasureReceipt:
        """Return the receipt of a text that `dump` returned."""
        return cls.from_json(json.loads(text))
