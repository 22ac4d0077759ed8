"""A conversation on an agent server, with the interface of a local one.

The server stores and runs the conversation. This process reads its events and derives its state from them, as a local
conversation does. Properties return the state that was read last, and send no request; `refresh` reads new events.

"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import replace
from datetime import datetime
from pathlib import Path
from types import NoneType
from typing import IO, Any, Literal, Self, Unpack, cast, overload
from urllib.parse import quote
from uuid import UUID

from bough.conversation.agent import AgentLike, AgentOf
from bough.conversation.fork.compare import ComparedEnd, Comparison, FileDifference, compare_ranges
from bough.conversation.fork.request import ForkOptions, ForkRequest
from bough.conversation.log.turns import Turn, TurnRecord
from bough.conversation.message import add_inputs, check_message
from bough.conversation.remote.bodies import (
    make_agent_body,
    make_content_body,
    make_filter_query,
    make_fork_body,
    make_rules_body,
    name_order,
    read_hit,
    read_record,
    require_absent,
    require_same_conversation,
    search_query,
)
from bough.conversation.remote.events import RemoteLogs
from bough.conversation.remote.files import RemoteFiles
from bough.conversation.remote.runs import RemoteRuns
from bough.conversation.remote.transport import ServerTransport
from bough.conversation.result import OutputT, T
from bough.conversation.rules import GivenRules
from bough.conversation.search import make_query
from bough.errors import Conflict, InvalidInput, NotFound, NotSupported
from bough.events.content import Source
from bough.events.draft import parse_id
from bough.events.erasure.receipt import ErasureReceipt
from bough.events.model import Event, FilePart, ImagePart, UserMessage
from bough.events.record import Ancestry, ConversationFilter, DeleteMode, Order, Page, SearchPage
from bough.types import JsonObject, new_id, require_type


class RemoteConversation(RemoteRuns[T], RemoteFiles):
    """A conversation that a server runs, with the names, results and errors of `AsyncConversation`.

    `AsyncConversation.create(server=…)` and `open(server=…)` return it. A lost connection does not stop a run, but
    cancelling the call that waits for the run does.
    """

    @classmethod
    async def create(
        cls,
        agent: AgentOf[OutputT] | None = None,
        *,
        server: str,
        api_key: str | None = None,
        workspace: str | Path = ".",
        id: UUID | None = None,
        title: str | None = None,
        tags: Mapping[str, str] | None = None,
        exist_ok: bool = False,
        **rules: Unpack[GivenRules],
    ) -> RemoteConversation[OutputT]:
        """Create a conversation on a server. It is durable on return.

        Args:
            agent: A model string, or a spec without code. A spec that has only a name refers to an agent that is
                registered with the server.
            workspace: A folder on the server, relative to the tenant's folder; `.` makes a new one.
            exist_ok: Whether to open the conversation if `id` exists.

        Raises:
            NotSupported: An argument cannot be sent over HTTP. Nothing was sent.
            InvalidInput: `exist_ok` is True, and there is no id.
            Conflict: `id` exists, and `exist_ok` is False, or the agent or a rule differs.
        """
        if exist_ok and id is None:
            raise InvalidInput("exist_ok needs an id", hint="give the id of the conversation: id=…")
        body: JsonObject = {"id": str(id or new_id()), "title": title, "tags": dict(tags or {})}
        body |= {"agent": make_agent_body(agent), **make_rules_body(rules)}
        body |= {} if str(workspace) == "." else {"workspace": {"working_dir": str(workspace)}}
        secrets = rules.get("secrets")
        values = {} if secrets is None else secrets.values()
        transport = ServerTransport(server, api_key)
        try:
            try:
                document = await transport.send("POST", "/api/conversations", body=body, key=new_id())
            except Conflict:
                if not exist_ok:
                    raise
                document = await transport.send("GET", f"/api/conversations/{id}")
                require_same_conversation(document, body)
        except BaseException:
            await transport.aclose()
            raise
        conversation = cast("RemoteConversation[Any]", cls(transport, read_record(document)))
        if values:
            await conversation._post("secrets", {"secrets": values})
        await conversation.refresh()
        return conversation

    @classmethod
    async def open(
        cls, id: UUID | str, *, server: str, api_key: str | None = None, **rules: Unpack[GivenRules]
    ) -> RemoteConversation[OutputT]:
        """Open a conversation on a server. Reads its log once: O(events).

        Raises:
            NotFound: There is no such conversation, or it belongs to another tenant.
            InvalidInput: `id` is not a complete UUID.
            NotSupported: Rules are given; opening a conversation over HTTP cannot change its rules.
        """
        require_absent(**rules)
        cid = _parse_complete_id(id)
        transport = ServerTransport(server, api_key)
        try:
            record = read_record(await transport.send("GET", f"/api/conversations/{cid}"))
            opened = cast("RemoteConversation[Any]", cls(transport, record))
            await opened.refresh()
        except BaseException:
            await transport.aclose()
            raise
        return opened

    @classmethod
    async def list(
        cls,
        *,
        server: str,
        api_key: str | None = None,
        filter: ConversationFilter | None = None,
        cursor: str | None = None,
        limit: int = 50,
        order: Order = "updated_desc",
    ) -> Page:
        """Return a page of a server's conversations.

        Raises:
            InvalidInput: The order is invalid.
        """
        query = make_filter_query(filter) | {"limit": limit, "sort_order": name_order(order)}
        query |= {} if cursor is None else {"page_id": cursor}
        transport = ServerTransport(server, api_key)
        try:
            page = await transport.send("GET", "/api/conversations/search", query=query)
        finally:
            await transport.aclose()
        return Page(items=[read_record(item) for item in page["items"]], next_cursor=page["next_page_id"])

    @classmethod
    async def search(
        cls,
        text: str,
        *,
        server: str,
        api_key: str | None = None,
        tags: Mapping[str, str] | None = None,
        since: datetime | None = None,
        project: str | None = None,
        limit: int = 20,
        cursor: str | None = None,
    ) -> SearchPage:
        """Return messages of a server's conversations that match; see `AsyncConversation.search`."""
        query = make_query(text, tags=tags, since=since, project=project, limit=limit, cursor=cursor)
        transport = ServerTransport(server, api_key)
        try:
            page = await transport.send("GET", "/api/conversations/search", query=search_query(query))
        finally:
            await transport.aclose()
        return SearchPage(items=[read_hit(item) for item in page["items"]], next_cursor=page["next_page_id"])

    @classmethod
    async def delete(cls, id: UUID | str, *, server: str, api_key: str | None = None) -> None:
        """Delete a conversation on a server; see `AsyncConversation.delete`."""
        await _send_deletion(id, "tombstone", server, api_key)

    @classmethod
    async def erase(
        cls, id: UUID | str, *, forks: bool = False, server: str, api_key: str | None = None
    ) -> ErasureReceipt:
        """Erase a conversation on a server; see `AsyncConversation.erase`."""
        document = await _send_deletion(id, "erase", server, api_key, forks=forks)
        return ErasureReceipt.from_json(document["erasure"])

    @classmethod
    async def import_(
        cls,
        file: IO[bytes],
        *,
        server: str,
        api_key: str | None = None,
        accept_unknown: bool = False,
        workspace: str | None = None,
    ) -> RemoteConversation[T]:
        """Import a bundle into a server, and open the conversation. It is in quarantine until `adopt`.

        Importing the same bundle again adds nothing.

        Args:
            file: Open for reading. Read completely into memory, then sent.
            accept_unknown: Accept a bundle whose signer the server's operator does not know.
            workspace: A folder on the server, relative to the tenant's folder; None makes a new one.

        Raises:
            InvalidInput: The file is not a bundle.
            PermissionDenied: The server does not know the signer.
            Conflict: An id of the bundle is taken on the server, or the conversation has other events there.
        """
        query: dict[str, Any] = {"accept_unknown": accept_unknown}
        query |= {} if workspace is None else {"workspace": workspace}
        transport = ServerTransport(server, api_key)
        try:
            content = await asyncio.to_thread(file.read)
            document = await transport.send("POST", "/api/conversations/import", content=content, query=query)
            imported = cls(transport, read_record(document))
            await imported.refresh()
        except BaseException:
            await transport.aclose()
            raise
        return imported

    async def export(self, file: IO[bytes], *, format: Literal["bundle", "jsonl", "md"] = "bundle") -> None:
        """Write the server's export to a file: a signed bundle, JSON lines, or a Markdown document."""
        await self._transport.download(f"{self._path}/export", {"format": format}, file)

    async def send_message(
        self,
        message: str | UserMessage = "",
        *,
        images: Sequence[Source | ImagePart] = (),
        files: Sequence[Source | FilePart] = (),
        id: UUID | None = None,
        sender: str = "user",
    ) -> UUID:
        """Append a message and return the id of its event; durable on return. A run sees the message at its next step.

        Args:
            images: Paths or bytes of images, sent with the message.
            files: Not supported by servers.
            id: The id of the event. A message sent again with the same id is appended once.

        Raises:
            Conflict: `id` belongs to another event.
            InvalidInput: The message is empty or too long, or an image cannot be read.
            LimitExceeded: An image has more than 20 MiB, or all of them more than 64 MiB.
            NotSupported: `files` is not empty, or an image is a URL.
            PermissionDenied: A hook of the server refuses the message.
        """
        event = check_message(add_inputs(message, images, files, sender=sender), sender=sender)
        event_id = event.id if id is None else parse_id(id)
        body = {"content": make_content_body(event.content), "sender": event.sender, "id": str(event_id)}
        await self._post("events", body, key=event_id)
        await self.refresh()
        return event_id

    async def prepare_message(self, message: str | UserMessage, *, sender: str = "user") -> list[Event]:
        """Raise `NotSupported`: the server prepares messages itself."""
        raise NotSupported("messages are prepared by the server", hint="use send_message")

    async def read_file(self, digest: str) -> bytes:
        """Return the bytes of an image or file of a message or result; see `AsyncConversation.read_file`."""
        return await self._transport.read(f"{self._path}/attachments/{quote(digest, safe='')}")

    async def ask(self, question: str) -> str:
        """Return the model's answer to a question about the conversation. The log records neither of them."""
        return (await self._post("ask_agent", {"question": question}))["response"]

    @overload
    async def fork(self, *, agent: None = None, **options: Unpack[ForkOptions]) -> RemoteConversation[T]: ...

    @overload
    async def fork(self, *, agent: AgentOf[OutputT], **options: Unpack[ForkOptions]) -> RemoteConversation[OutputT]: ...

    async def fork(self, *, agent: AgentLike | None = None, **options: Unpack[ForkOptions]) -> RemoteConversation[Any]:
        """Fork the conversation on the server; see `AsyncConversation.fork`.

        The server ignores `actor` and records the name of the API key.

        Raises:
            NotSupported: `secrets="none"`, `ephemeral` or an override with functions is given.
        """
        if isinstance(at := options.get("at"), Turn):
            options["at"] = await self._find_cut(at)
        body = make_fork_body(ForkRequest.of(agent, options))
        document = await self._post("fork", body, key=new_id())
        fork: RemoteConversation[Any] = RemoteConversation(self._transport.copy(), read_record(document))
        await fork.refresh()
        return fork

    async def repeat(self, turn: Turn, *, id: UUID | None = None) -> UUID:
        """Send the message of a recorded turn again; see `AsyncConversation.repeat`. The server reads it from its log.

        Raises:
            InvalidInput: There is no such turn, or its record belongs to an unrelated conversation.
            NotFound: The conversation of the record was deleted.
            PermissionDenied: A hook of the server refuses the message.
        """
        require_type(turn, Turn, "a turn", "give Turn(n), or a record of turns()")
        if turn.number < 1:
            raise InvalidInput(f"there is no turn {turn.number} to repeat", hint="turns are counted from 1")
        event_id = new_id() if id is None else parse_id(id)
        body: JsonObject = {"turn": turn.number, "id": str(event_id)}
        body |= {"conversation": str(turn.conversation)} if isinstance(turn, TurnRecord) else {}
        await self._post("repeat", body, key=event_id)
        await self.refresh()
        return event_id

    async def compare(self, other: RemoteConversation[Any], *, until: Turn | None = None) -> Comparison:
        """Compare this conversation (`a`) with another on the server (`b`); see `AsyncConversation.compare`."""
        require_type(until, (Turn, NoneType), "until", "give Turn(n)")
        query = {} if until is None else {"until": until.number}
        document = await self._transport.send("GET", f"{self._path}/compare/{other.id}", query=query)
        logs = RemoteLogs({self.id: self._log, other.id: other._log}, document["common"])
        a, b = (ComparedEnd(document[side]["stop"], document[side]["head"]) for side in ("a", "b"))
        files = tuple(FileDifference(path=file["path"], change=file["change"]) for file in document["files"])
        return replace(await compare_ranges(logs, self.id, other.id, (a, b)), files=files)

    async def _find_cut(self, turn: Turn) -> int:
        """Return the number of events up to the end of a turn. Reads the log."""
        turns = await self.turns()
        if isinstance(turn, TurnRecord) and turn.message.id not in {record.message.id for record in turns}:
            raise NotFound(f"turn {turn.number} belongs to another conversation", hint="give a turn of this one")
        if not 0 <= turn.number <= len(turns):
            raise InvalidInput(
                f"there is no turn {turn.number}: the conversation has {len(turns)}",
                hint=f"choose a number from 0 to {len(turns)}",
            )
        if turn.number == 0:
            return turns[0].start if turns else self.state.head
        return turns[turn.number - 1].stop

    async def graft(
        self, source: RemoteConversation[Any], *, start: int | None = None, stop: int | None = None, summary: str = ""
    ) -> None:
        """Append a message that describes events of another conversation; see `AsyncConversation.graft`."""
        await self._post("graft", {"source": str(source.id), "start": start, "stop": stop, "summary": summary})
        await self.refresh()

    async def lineage(self) -> Ancestry:
        """Return the conversations from which this one descends, oldest first, and this one last."""
        lineage = await self._transport.send("GET", f"{self._path}/lineage")
        ids = [item["id"] for item in lineage["items"]]
        documents = await self._transport.send("GET", "/api/conversations", query={"ids": ids})
        return Ancestry(read_record(document) for document in documents if document is not None)

    async def condense(self, *, keep: str = "") -> bool:
        """Replace older messages that the model is shown by a summary; see `AsyncConversation.condense`."""
        try:
            await self._post("condense", {"keep": keep} if keep else None)
        except Conflict as error:
            if error.details.get("condensed") is not False:
                raise
            return False
        await self.refresh()
        return True

    async def aclose(self) -> None:
        """Interrupt the run that this object waits for, if any, and close its connections. Idempotent."""
        if self._is_running:
            await self.interrupt()
        await self._transport.aclose()
        self.on_closed()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.aclose()


async def _send_deletion(
    id: UUID | str, mode: DeleteMode, server: str, api_key: str | None, *, forks: bool = False
) -> JsonObject:
    query: JsonObject = {"mode": mode} | ({"forks": True} if forks else {})
    transport = ServerTransport(server, api_key)
    try:
        return await transport.send("DELETE", f"/api/conversations/{_parse_complete_id(id)}", query=query)
    finally:
        await transport.aclose()


def _parse_complete_id(id: UUID | str) -> UUID:
    """Return an id that a server accepts. Raises `InvalidInput` for an abbreviated one."""
    try:
        return UUID(str(id))
    except ValueError as error:
        raise InvalidInput(
            f"{id!r:.80} is not a complete id", hint="a server accepts no abbreviated ids: give the whole UUID"
        ) from error
