"""The resources of the MCP server: transcripts and events of conversations, skills, agents."""

from __future__ import annotations

import json
import re
from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import SplitResult, parse_qs, urlsplit
from uuid import UUID

from mcp_types import (
    ListResourcesResult,
    ListResourceTemplatesResult,
    ReadResourceResult,
    Resource,
    ResourceTemplate,
    TextResourceContents,
)

from bough.agents.spec import AgentSpec
from bough.errors import InvalidInput, NotFound, PermissionDenied
from bough.events.record import ConversationRecord, StoredEvent
from bough.events.store import EventStore
from bough.server.documents import Transcript, write_document
from bough.settings import Settings
from bough.skills import SkillRegistry

SHOWN_EVENTS = 200
"""Maximum number of a conversation's events in one response."""

_PAGE_SIZE = 50
_SEQ = re.compile(r"[0-9]{1,15}")

_TEMPLATES = (
    (
        "transcript",
        "bough://conversations/{id}",
        "text/markdown",
        "A conversation as a document, from event ?from= on.",
    ),
    (
        "events",
        "bough://conversations/{id}/events",
        "application/x-ndjson",
        "The events of a conversation as JSON lines.",
    ),
    ("skill", "bough://skills/{name}", "text/markdown", "The SKILL.md of a skill."),
    ("agent", "bough://agents/{name}", "application/json", "An agent of config.yaml."),
)


@dataclass(frozen=True, kw_only=True)
class ServedResources:
    """The resources that a client may read.

    Attributes:
        workspace: The folder whose skills are listed.
        agents: Returns the agent with a name; the default agent for None.
        agent_names: The agents of `config.yaml`.
        may_read: Whether the client may read resources of a kind: `conversations`, `skills`, `agents`.
        transcript: Writes a conversation as a document; None writes plain text.
    """

    settings: Settings
    store: EventStore
    workspace: Path
    agents: Callable[[str | None], AgentSpec]
    agent_names: Sequence[str]
    transcript: Transcript | None = None
    may_read: Callable[[str], bool] = lambda _: True

    def require(self, kind: str) -> None:
        """Check that the client may read resources of a kind.

        Raises:
            PermissionDenied: The client may not read them.
        """
        if not self.may_read(kind):
            raise PermissionDenied(f"this needs a key with the scope {kind}", hint="create a key with that scope")

    async def list(self, cursor: str | None) -> ListResourcesResult:
        """Return a page of resources: skills and agents, then conversations, most recently updated first."""
        resources: list[Resource] = []
        is_first_page = not cursor
        if is_first_page and self.may_read("skills"):
            resources += self._list_skills()
        if is_first_page and self.may_read("agents"):
            resources += self._list_agents()
        if not self.may_read("conversations"):
            return ListResourcesResult(resources=resources)
        page = await self.store.list(None, cursor, _PAGE_SIZE)
        resources += [
            Resource(
                uri=f"bough://conversations/{record.id}",
                name=record.id.hex[-8:],
                title=record.title,
                mime_type="text/markdown",
            )
            for record in page.items
        ]
        return ListResourcesResult(resources=resources, next_cursor=page.next_cursor)

    def list_templates(self) -> ListResourceTemplatesResult:
        """Return the templates of the resources' addresses."""
        return ListResourceTemplatesResult(
            resource_templates=[
                ResourceTemplate(name=name, uri_template=uri, mime_type=kind, description=about)
                for name, uri, kind, about in _TEMPLATES
            ]
        )

    async def read(self, uri: str) -> ReadResourceResult:
        """Return the contents of the resource at an address.

        Raises:
            InvalidInput: The address is not one of bough, or its query is invalid.
            NotFound: The resource does not exist.
            PermissionDenied: The client may not read resources of this kind.
        """
        parts = _split_address(uri)
        path = [segment for segment in parts.path.split("/") if segment]
        self.require(parts.netloc)
        match (parts.netloc, *path):
            case ("conversations", id):
                kind, text = "text/markdown", await self._read_transcript(_parse_id(id), _parse_first(parts.query))
            case ("conversations", id, "events"):
                kind, text = "application/x-ndjson", await self._read_events(_parse_id(id), _parse_first(parts.query))
            case ("skills", name):
                kind, text = "text/markdown", self._read_skill(name)
            case ("agents", name):
                kind, text = "application/json", json.dumps(self._find_agent(name).snapshot(), ensure_ascii=False)
            case _:
                raise NotFound(f"there is no resource {uri!r:.200}", hint="see the resource templates")
        return ReadResourceResult(contents=[TextResourceContents(uri=uri, mime_type=kind, text=text)])

    async def follow(self, uri: str) -> AsyncIterator[StoredEvent]:
        """Return an iterator of the new events of a conversation's resource.

        Raises:
            InvalidInput: It is not the address of a conversation.
            NotFound: The conversation does not exist.
            PermissionDenied: The client may not read conversations.
        """
        parts = _split_address(uri)
        path = [segment for segment in parts.path.split("/") if segment]
        if parts.netloc != "conversations" or not path:
            raise InvalidInput("only conversations change", hint="subscribe to bough://conversations/{id}")
        self.require(parts.netloc)
        record = await self.store.get(_parse_id(path[0]))
        return self.store.subscribe(record.id, record.head - 1)

    async def _read_transcript(self, id: UUID, first: int | None) -> str:
        record = await self.store.get(id)
        events = await self._read_range(record, first)
        return "".join(write_document(self.transcript, record, events))

    async def _read_events(self, id: UUID, first: int | None) -> str:
        record = await self.store.get(id)
        events = await self._read_range(record, first)
        return "".join(json.dumps(stored.as_json(), ensure_ascii=False) + "\n" for stored in events)

    async def _read_range(self, record: ConversationRecord, first: int | None) -> list[StoredEvent]:
        """Return at most `SHOWN_EVENTS` events from seq `first` on; the latest ones if it is None."""
        start = max(0, record.head - SHOWN_EVENTS) if first is None else first
        return [stored async for stored in self.store.read(record.id, start, start + SHOWN_EVENTS)]

    def _read_skill(self, name: str) -> str:
        path = self._registry().get(name).path
        if path is None:
            raise NotFound(f"the skill {name!r} has no file", hint="it was defined in code")
        return path.read_text("utf-8")

    def _find_agent(self, name: str) -> AgentSpec:
        """Return the agent with a name. Without an agent of `config.yaml` named `default`, that is the default agent.

        Raises:
            NotFound: No agent has this name.
        """
        names = self._list_agent_names()
        if name not in names:
            raise NotFound(f"no agent named {name!r:.80}", hint=f"known agents: {', '.join(names)}")
        is_unregistered_default = name not in self.agent_names
        return self.agents(None if is_unregistered_default else name)

    def _list_agent_names(self) -> Sequence[str]:
        return list(dict.fromkeys(["default", *self.agent_names]))

    def _registry(self) -> SkillRegistry:
        return SkillRegistry.open(self.workspace, home=self.settings.home, roots=self.settings.skill_roots)

    def _list_skills(self) -> list[Resource]:
        return [
            Resource(uri=f"bough://skills/{skill.name}", name=skill.name, mime_type="text/markdown")
            for skill in self._registry().list_all()
        ]

    def _list_agents(self) -> list[Resource]:
        return [
            Resource(uri=f"bough://agents/{name}", name=name, mime_type="application/json")
            for name in self._list_agent_names()
        ]


def _split_address(uri: str) -> SplitResult:
    """Return the parts of a resource's address; the host is the kind of the resource."""
    try:
        parts = urlsplit(uri)
    except ValueError:
        parts = urlsplit("")
    if parts.scheme != "bough":
        raise InvalidInput(f"{uri!r:.200} is not an address of bough", hint="addresses begin with bough://")
    return parts


def _parse_id(text: str) -> UUID:
    try:
        return UUID(text)
    except ValueError:
        raise InvalidInput(f"{text!r:.80} is not the id of a conversation", hint="give its UUID") from None


def _parse_first(query: str) -> int | None:
    """Return the number of the first event, from `from=` in the query of an address; None without it.

    Raises:
        InvalidInput: `from` is not a number, or there is another parameter.
    """
    parameters = parse_qs(query, keep_blank_values=True)
    unknown = sorted(parameters.keys() - {"from"})
    if unknown:
        raise InvalidInput(f"unknown parameter in the address: {unknown[0]!r:.40}", hint="?from= sets the first event")
    start = parameters.get("from")
    if start is None:
        return None
    if _SEQ.fullmatch(start[0]) is None:
        raise InvalidInput(f"from={start[0]!r:.20} is not a number", hint="give the number of the first event")
    return int(start[0])
