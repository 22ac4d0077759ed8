"""A conversation of an agent server, under the names of a local one.

The server runs it and keeps it; here its events are read and folded as a local conversation folds its own. Properties
say what was read last and ask nobody; `refresh` reads what came since.

Source: server.md, 21. Remote client.
"""

from __future__ import annotations

import asyncio
import builtins
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any, Generic, NoReturn, Self, Unpack
from uuid import UUID

from pydantic_ai.messages import ModelMessage

from bough.agents.spec import AgentSpec
from bough.conversation.agent import AgentLike, AgentOf, recorded_spec
from bough.conversation.fork.compare import Comparison, FileDifference, compare
from bough.conversation.fork.cut import Pending, Snap, Turn
from bough.conversation.fork.fork import ForkOverrides
from bough.conversation.fork.workspace import WorkspacePolicy
from bough.conversation.log.fold import Fold
from bough.conversation.log.listeners import Delta, Listeners, OnEvent, Update
from bough.conversation.log.state import State
from bough.conversation.log.view import View
from bough.conversation.message import checked
from bough.conversation.remote.bodies import (
    agent_body,
    content_body,
    filter_query,
    limits_body,
    overrides_body,
    record_of,
    require_absent,
    rules_body,
)
from bough.conversation.remote.events import RemoteLog, RemoteLogs
from bough.conversation.remote.transport import ServerTransport, error_of
from bough.conversation.result import RunResult, T, list_waiting
from bough.conversation.rules import GivenRules
from bough.conversation.run.outcome import RunOutcome
from bough.errors import BoughError, Conflict, InvalidInput, NotSupported
from bough.events.model import ErrorRaised, ModelResponded, Usage, UserMessage
from bough.events.record import ConversationFilter, ConversationRecord, Page, Status, StoredEvent
from bough.events.store import Cut
from bough.guard import Limits, Policy
from bough.types import JsonObject, new_id

_WAIT_SECONDS = 30


class RemoteConversation(Generic[T]):
    """A conversation that a server runs; names, results and errors are those of `AsyncConversation`.

    Make one with `AsyncConversation.create(server=…)` or `open(server=…)`. Losing the connection does not stop a run;
    cancelling the one who waits for it does.
    """

    def __init__(self, transport: ServerTransport, record: ConversationRecord) -> None:
        self._transport = transport
        self._record = record
        self._path = f"/api/conversations/{record.id}"
        self._log = RemoteLog(transport, record.id)
        self._view = View()
        self._fold = Fold(view=self._view)
        self._listeners = Listeners(record.id)
        self._folding = asyncio.Lock()
        self._is_running = False
        self._was_interrupted = False
        self._latest: RunResult[T] | None = None

    @classmethod
    async def create(
        cls,
        agent: AgentOf[T] | None = None,
        *,
        server: str,
        api_key: str | None = None,
        workspace: str | Path = ".",
        id: UUID | None = None,
        title: str | None = None,
        tags: Mapping[str, str] | None = None,
        exist_ok: bool = False,
        **given: Unpack[GivenRules],
    ) -> RemoteConversation[T]:
        """Start a conversation on a server; it is durable there on return.

        Args:
            agent: A model string, or a spec of data; a spec that has nothing but a name is one of the server's.
            workspace: A folder there, relative to the tenant's; `.` is one of the conversation's own.

        Raises:
            NotSupported: Something is given that cannot be said over HTTP; nothing was sent.
            Conflict: `id` is taken, and `exist_ok` is not given.
        """
        if exist_ok and id is None:
            raise InvalidInput("exist_ok needs an id", hint="say which conversation: id=…")
        body: JsonObject = {"id": str(id or new_id()), "title": title, "tags": dict(tags or {})}
        body |= {"agent": agent_body(agent), **rules_body(given)}
        body |= {} if str(workspace) == "." else {"workspace": {"working_dir": str(workspace)}}
        secrets = given.get("secrets")
        values = {} if secrets is None else secrets.values()
        transport = ServerTransport(server, api_key)
        try:
            document = await transport.send("POST", "/api/conversations", body=body, key=new_id())
        except Conflict:
            if not exist_ok:
                await transport.aclose()
                raise
            document = await transport.send("GET", f"/api/conversations/{id}")
        except BaseException:
            await transport.aclose()
            raise
        made = cls(transport, record_of(document))
        if values:
            await made._post("secrets", {"secrets": values})
        await made.refresh()
        return made

    @classmethod
    async def open(
        cls, id: UUID | str, *, server: str, api_key: str | None = None, **given: Unpack[GivenRules]
    ) -> RemoteConversation[T]:
        """Open a conversation of a server. Reads its log once: O(events).

        Raises:
            NotFound: There is no such conversation, or it is another tenant's.
            InvalidInput: The id is not a whole one.
            NotSupported: Rules are given, which are the server's.
        """
        require_absent(**given)
        try:
            cid = UUID(str(id))
        except ValueError as error:
            raise InvalidInput(
                f"{id!r:.80} is not a whole id", hint="a server identifies conversations by it"
            ) from error
        transport = ServerTransport(server, api_key)
        try:
            opened = cls(transport, record_of(await transport.send("GET", f"/api/conversations/{cid}")))
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
    ) -> Page:
        """Return a page of a server's conversations, most recently updated first."""
        query = filter_query(filter) | {"limit": limit, "sort_order": "UPDATED_AT_DESC"}
        query |= {} if cursor is None else {"page_id": cursor}
        transport = ServerTransport(server, api_key)
        try:
            page = await transport.send("GET", "/api/conversations/search", query=query)
        finally:
            await transport.aclose()
        return Page(items=[record_of(item) for item in page["items"]], next_cursor=page["next_page_id"])

    # What it is, as of the last event that was read.

    @property
    def id(self) -> UUID:
        """Its id."""
        return self._record.id

    @property
    def short_id(self) -> str:
        """The last 8 hexadecimal digits of its id."""
        return self.id.hex[-8:]

    @property
    def state(self) -> State:
        """The fold of the events that were read."""
        return self._fold.state

    @property
    def status(self) -> Status:
        """Where it stands."""
        return self.state.status

    @property
    def result(self) -> RunResult[T] | None:
        """How the latest run of this object ended; None before one."""
        return self._latest

    @property
    def title(self) -> str | None:
        """Its title."""
        return self.state.title

    @property
    def tags(self) -> dict[str, str]:
        """Its tags."""
        return dict(self.state.tags)

    @property
    def usage(self) -> Usage:
        """What it used since it was started or forked."""
        return self.state.own

    async def messages(self) -> builtins.list[ModelMessage]:
        """Return what the model is shown of it, as PydanticAI's messages."""
        return self._view.messages()

    @property
    def workspace(self) -> Path:
        """The working folder on the server."""
        return self.state.workspace

    @property
    def agent(self) -> AgentSpec:
        """The agent in use, as its log has it."""
        return recorded_spec(self.state)

    @property
    def events(self) -> AsyncIterator[StoredEvent]:
        """Iterate its events, shared ones included, from the server."""
        return self._log.read()

    @property
    def server(self) -> str:
        """The address of the server."""
        return self._transport.url

    @property
    def skills(self) -> NoReturn:
        """Not known here."""
        raise NotSupported("skills are the server's", hint="GET /api/skills")

    @property
    def executor(self) -> NoReturn:
        """Not here."""
        raise NotSupported("the executor is the server's", hint="the operator chooses it")

    @property
    def settings(self) -> NoReturn:
        """Not known here."""
        raise NotSupported("settings are the operator's", hint="ask the operator")

    @property
    def store(self) -> NoReturn:
        """Not here."""
        raise NotSupported("the store is the server's", hint="`events` reads the log")

    # What it does.

    async def refresh(self) -> None:
        """Read the events that came since. O(new events)."""
        async with self._folding:
            async for stored in self._log.read(self.state.head):
                self._take(stored)

    async def send_message(self, message: str | UserMessage, *, sender: str = "user") -> None:
        """Append a message, durable on return. A run in progress sees it at its next step.

        Raises:
            InvalidInput: The message is empty or too long.
            PermissionDenied: A hook of the server refuses it.
        """
        event = checked(message, sender=sender)
        body = {"content": content_body(event.content), "sender": event.sender, "id": str(event.id)}
        await self._post("events", body, key=event.id)
        await self.refresh()

    async def run(
        self, *, on_event: OnEvent | None = None, on_node: object = None, limits: Limits | None = None
    ) -> RunResult[T]:
        """Have the server run it until the model has answered everything, and return how it ended.

        Args:
            on_event: Called for durable events and pieces of text in order, all of them before this returns.

        Raises:
            Conflict: It is running already.
            ModelError: The model failed; the conversation is in `error` and can be run again.
            NotSupported: `on_node` or `limits` are given.
        """
        require_absent(on_node=on_node, limits=limits)
        if self._is_running:
            raise Conflict("the conversation is already running", hint="wait for that run, or interrupt it")
        if on_event is not None:
            async with self._listeners.call_for_updates(on_event):
                return await self.run()
        self._is_running, self._was_interrupted = True, False
        try:
            return await self._run()
        except asyncio.CancelledError:
            await asyncio.shield(self.interrupt())
            raise
        finally:
            self._is_running = False

    async def run_stream(self) -> AsyncIterator[Update]:
        """Run, and iterate events and pieces of text as they come. Leaving early interrupts the run."""
        updates: asyncio.Queue[Update | None] = asyncio.Queue()
        self._listeners.listeners.append(updates.put_nowait)
        run = asyncio.create_task(self.run())
        run.add_done_callback(lambda _: updates.put_nowait(None))
        try:
            while (update := await updates.get()) is not None:
                yield update
            await run
        finally:
            self._listeners.listeners.remove(updates.put_nowait)
            run.cancel()
            await asyncio.gather(run, return_exceptions=True)

    async def pause(self, *, by: str = "user", reason: str = "") -> None:
        """Ask the run to stop at its next step. The server records the key's name, whatever `by` says."""
        await self._post("pause", {"reason": reason})

    async def interrupt(self, *, by: str = "user", reason: str = "") -> None:
        """Stop the run now, whichever process started it: tools and scripts are killed. It can be resumed."""
        self._was_interrupted = True
        await self._transport.send("POST", f"{self._path}/interrupt", query={"wait": "true"}, key=new_id())
        await self.refresh()

    async def approve(
        self, *calls: str, by: str = "user", reason: str = "", arguments: JsonObject | None = None
    ) -> None:
        """Let waiting calls run; all of them where none is named. The next `run` runs them.

        Raises:
            Conflict: Nothing waits, or a call that is named does not.
            NotSupported: `arguments` are given.
        """
        require_absent(arguments=arguments)
        await self._decide("approve", calls)

    async def answer(self, call: str, value: object, *, by: str = "user") -> NoReturn:
        """Refuse: a server takes answers as input of the task that asks."""
        raise NotSupported("calls are not answered over HTTP", hint="answer the task that asks")

    async def reject(self, *calls: str, reason: str = "", by: str = "user") -> None:
        """Refuse waiting calls; all of them where none is named. The model is told why at the next `run`.

        Raises:
            Conflict: Nothing waits, or a call that is named does not.
        """
        await self._decide("reject", calls, reason)

    async def ask(self, question: str) -> str:
        """Return the model's answer to a question about the conversation; the log is left untouched."""
        return (await self._post("ask_agent", {"question": question}))["response"]

    async def append(self, *events: object) -> NoReturn:
        """Refuse: a server writes its log itself."""
        raise NotSupported("events are not appended over HTTP", hint="send_message")

    async def adopt(self, *, by: str = "user", policy: Policy | None = None) -> None:
        """Refuse: the operator of the store adopts what was imported there."""
        raise NotSupported("a quarantine ends at the store", hint="`bough conv adopt` on the server")

    async def set_title(self, title: str) -> None:
        """Give it a title."""
        await self._change({"title": title})

    async def set_tags(self, tags: Mapping[str, str]) -> None:
        """Give it these tags and no others."""
        await self._change({"tags": dict(tags)})

    async def fork(
        self,
        *,
        id: UUID | None = None,
        agent: AgentLike | None = None,
        title: str | None = None,
        tags: Mapping[str, str] | None = None,
        reset_metrics: bool = True,
        at: Cut | Turn | None = None,
        snap: Snap = "exact",
        pending: Pending = "close",
        overrides: ForkOverrides | None = None,
        inherit_tags: bool = True,
        workspace: WorkspacePolicy = "shared",
        secrets: str = "reference",
        reason: str | None = None,
        actor: str | None = None,
        ephemeral: bool = False,
    ) -> RemoteConversation[T]:
        """Branch off on the server; see `AsyncConversation.fork`. The server records the key's name as the actor.

        Raises:
            NotSupported: `at` is a `Turn`, or `secrets="none"`, `ephemeral` or an override of functions is given.
        """
        require_absent(secrets=secrets if secrets != "reference" else None, ephemeral=ephemeral)
        require_absent(turn=at if isinstance(at, Turn) else None)
        body: JsonObject = {"id": str(id or new_id()), "title": title, "agent": agent_body(agent), "reason": reason}
        body |= {"tags": None if tags is None else dict(tags), "reset_metrics": reset_metrics, "snap": snap}
        body |= {"pending": pending, "inherit_tags": inherit_tags, "workspace": workspace}
        body |= {"overrides": overrides_body(overrides)} if overrides else {}
        if at is not None:
            body |= {"at": at} if isinstance(at, int) else {"from_event_id": str(at)}
        made = await self._post("fork", body, key=new_id())
        fork: RemoteConversation[T] = RemoteConversation(self._transport.copy(), record_of(made))
        await fork.refresh()
        return fork

    async def compare(self, other: RemoteConversation[Any]) -> Comparison:
        """Return what this conversation (`a`) and another one of the server (`b`) share, and where they differ."""
        found = await self._transport.send("GET", f"{self._path}/compare/{other.id}")
        logs = RemoteLogs({self.id: self._log, other.id: other._log}, found["common"])
        files = tuple(FileDifference(path=each["path"], change=each["change"]) for each in found["files"])
        return replace(await compare(logs, self.id, other.id), files=files)

    async def graft(
        self, source: RemoteConversation[Any], *, start: int | None = None, stop: int | None = None, summary: str = ""
    ) -> None:
        """Tell this conversation what happened in another one of the server."""
        await self._post("graft", {"source": str(source.id), "start": start, "stop": stop, "summary": summary})
        await self.refresh()

    async def lineage(self) -> builtins.list[ConversationRecord]:
        """Return the conversations this one descends from, itself last."""
        line = await self._transport.send("GET", f"{self._path}/lineage")
        ids = [item["id"] for item in line["items"]]
        found = await self._transport.send("GET", "/api/conversations", query={"ids": ids})
        return [record_of(document) for document in found if document is not None]

    async def condense(self) -> bool:
        """Condense what the model sees now, and say whether there was something to condense."""
        try:
            await self._post("condense", None)
        except Conflict as error:
            if error.details.get("condensed") is not False:
                raise
            return False
        await self.refresh()
        return True

    async def set_confirmation_policy(self, policy: Policy) -> None:
        """Change which calls wait for a person, from the next call on."""
        await self._post("confirmation_policy", {"policy": policy.to_json()})
        await self.refresh()

    async def set_limits(self, *limits: Limits) -> None:
        """Change the bounds of each run, from the next step on."""
        if not limits:
            raise InvalidInput("no limits were given", hint="give Limits(…); Limits(steps=None) has no bound of steps")
        await self._post("limits", limits_body(limits))
        await self.refresh()

    async def set_model(self, model: object) -> None:
        """Continue with another model from the next step.

        Raises:
            NotSupported: It is a model object, which cannot be sent.
        """
        if not isinstance(model, str):
            raise NotSupported("a model object cannot be sent to a server", hint="name the model")
        await self._post("model", {"model": model})
        await self.refresh()

    async def aclose(self) -> None:
        """Interrupt a run that this object waits for, and close its connections. Closing twice is fine."""
        if self._is_running:
            await self.interrupt()
        await self._transport.aclose()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.aclose()

    # How it does it.

    async def _run(self) -> RunResult[T]:
        await self.refresh()
        start, key = self.state.head, new_id()
        following = asyncio.create_task(self._follow(start)) if self._listeners.listeners else None
        try:
            # The same key, the same run: asked again when it takes longer, or when an answer got lost.
            while (ended := await self._post("run", {"wait": _WAIT_SECONDS}, key=key))["status"] == "running":
                pass
            if following is not None:
                await self._wait_for(following, ended["head"])
            await self.refresh()
        finally:
            if following is not None:
                following.cancel()
                await asyncio.gather(following, return_exceptions=True)
        return await self._result(start)

    async def _follow(self, head: int) -> None:
        """Fold events as they come, and tell listeners of them and of pieces of text."""
        async for heard in self._log.follow(head):
            if isinstance(heard, StoredEvent):
                async with self._folding:
                    self._take(heard)
            elif heard.kind == "delta":
                self._listeners.tell(Delta(text=heard.data["text"], kind=heard.data["kind"]))

    async def _wait_for(self, following: asyncio.Task[None], head: int) -> None:
        """Return when the events up to `head` were heard, or nothing is heard any more: the rest is read then."""
        reached = asyncio.Event()

        def look(update: Update) -> None:
            if self.state.head >= head:
                reached.set()

        self._listeners.listeners.append(look)
        try:
            if self.state.head < head:
                waiting = asyncio.create_task(reached.wait())
                await asyncio.wait({following, waiting}, timeout=_WAIT_SECONDS, return_when=asyncio.FIRST_COMPLETED)
                waiting.cancel()
        finally:
            with suppress(ValueError):
                self._listeners.listeners.remove(look)

    def _take(self, stored: StoredEvent) -> None:
        """Fold an event and tell of it, once."""
        if stored.seq == self.state.head:
            self._fold.apply(stored.event)
            self._listeners.tell(stored)

    async def _result(self, start: int) -> RunResult[T]:
        steps, failure, outcome = 0, None, RunOutcome()
        async for stored in self._log.read(start, self.state.head):
            outcome.watch(stored.event)
            if isinstance(event := stored.event, ModelResponded):
                steps += 1
            elif isinstance(event, ErrorRaised):
                failure = event
        state = self.state
        if state.status == "error" and failure is not None:
            raise error_of(failure.code, failure.message, hint=failure.hint)
        outcome.interrupted = state.status == "paused" and self._was_interrupted
        self._latest = RunResult(
            conversation=self.id,
            status=state.status,
            output=outcome.output,
            steps=steps,
            start=start,
            stop=state.head,
            usage=state.own,
            limit=state.limit,
            data=state.data,  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType] - JSON: the type is the server's
            finish_reason=outcome.finish_reason,
            partial=outcome.partial,
            reason=outcome.reason(state),
            waiting=list_waiting(state.waiting),
        )
        return self._latest

    async def _decide(self, decision: str, calls: Sequence[str], reason: str = "") -> None:
        await self.refresh()
        named = calls or tuple(self.state.waiting)
        if not named:
            raise Conflict("nothing is waiting", hint="see `state.waiting`")
        for call in named:
            body = {"decision": decision, "reason": reason, "run": False}
            try:
                await self._post(f"approvals/{call}", body)
            except BoughError as error:
                if error.code == "not_found":
                    raise Conflict(f"the call {call} does not wait", hint="see `state.waiting`") from error
                raise
        await self.refresh()

    async def _change(self, body: JsonObject) -> None:
        await self._transport.send("PATCH", self._path, body=body)
        await self.refresh()

    async def _post(self, name: str, body: JsonObject | None, *, key: UUID | None = None) -> Any:
        return await self._transport.send("POST", f"{self._path}/{name}", body=body, key=key)
