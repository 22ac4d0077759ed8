"""The sessions of an ACP client: creates, opens, lists and forks conversations of the store."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from pathlib import Path
from typing import Any, Final, cast
from uuid import UUID

from acp import schema
from acp.meta import AGENT_METHODS

from bough.conversation import AsyncConversation
from bough.errors import InvalidInput, NotFound
from bough.events.record import ConversationRecord
from bough.events.store import EventStore
from bough.server.acp.content import show_message
from bough.server.acp.editor import Editor, EditorSetup
from bough.server.acp.options import MODEL, list_commands, list_modes, list_options, parse_mode
from bough.server.acp.session import EditorSession
from bough.server.acp.updates import convert_step
from bough.server.live.steps import MessageStep, StepReader
from bough.tasks import TaskBroker
from bough.types import JsonObject

_PAGE_SIZE: Final = 50
_MAX_OPEN: Final = 32
"""Number of sessions that are kept open. The ones that were used least recently are closed, and can be loaded again."""


class EditorSessions:
    """The open sessions of a client, by id, the least recently used first. Each method answers one request."""

    def __init__(self, setup: EditorSetup, store: EventStore, broker: TaskBroker, editor: Editor) -> None:
        self._setup = setup
        self._store = store
        self._broker = broker
        self._editor = editor
        self._open: dict[UUID, EditorSession] = {}
        self._opening = asyncio.Lock()
        self._announcing: set[asyncio.Task[None]] = set()
        self._handlers: dict[str, Callable[[Any], Awaitable[Any]]] = {
            AGENT_METHODS["session_new"]: self.new,
            AGENT_METHODS["session_load"]: self.load,
            AGENT_METHODS["session_resume"]: self.resume,
            AGENT_METHODS["session_fork"]: self.fork,
            AGENT_METHODS["session_list"]: self.list,
            AGENT_METHODS["session_close"]: self.close,
            AGENT_METHODS["session_prompt"]: self.prompt,
            AGENT_METHODS["session_cancel"]: self.cancel,
            AGENT_METHODS["session_set_mode"]: self.set_mode,
            AGENT_METHODS["session_set_config_option"]: self.set_option,
        }

    async def handle(self, method: str, request: Any) -> Any:
        """Return the answer to a request.

        Args:
            method: A key of `serve.METHODS`, whose model the request has.
        """
        return await self._handlers[method](request)

    async def new(self, request: schema.NewSessionRequest) -> schema.NewSessionResponse:
        """Start a conversation in the folder `cwd`."""
        folder = _parse_folder(request.cwd)
        _refuse_servers(request.mcp_servers)
        agent = self._setup.make_agent()
        conversation = await AsyncConversation.create(
            agent,
            workspace=folder,
            store=self._store,
            broker=self._broker.delegation,
            settings=self._setup.settings,
            **self._setup.make_rules(folder, agent),
        )
        session = await self._add(conversation)
        return schema.NewSessionResponse(session_id=session.id, **self._describe(session))

    async def load(self, request: schema.LoadSessionRequest) -> schema.LoadSessionResponse:
        """Open a conversation, and send its messages and calls. They are read from the log in bounded memory."""
        _refuse_servers(request.mcp_servers)
        session = await self._find(request.session_id)
        await self._replay(session)
        return schema.LoadSessionResponse(**self._describe(session))

    async def resume(self, request: schema.ResumeSessionRequest) -> schema.ResumeSessionResponse:
        """Open a conversation without sending its messages and calls."""
        _refuse_servers(request.mcp_servers)
        session = await self._find(request.session_id)
        return schema.ResumeSessionResponse(**self._describe(session))

    async def fork(self, request: schema.ForkSessionRequest) -> schema.ForkSessionResponse:
        """Fork a conversation at its end, or at the event in `_meta`; see `_read_fork`."""
        _refuse_servers(request.mcp_servers)
        source = await self._find(request.session_id)
        options = await _read_fork(source.conversation, request.field_meta or {})
        session = await self._add(await source.conversation.fork(actor="acp", **options))
        return schema.ForkSessionResponse(session_id=session.id, **self._describe(session))

    async def list(self, request: schema.ListSessionsRequest) -> schema.ListSessionsResponse:
        """Return a page of conversations, the most recently changed first; with `cwd`, only those of this folder.

        With `cwd`, a page may be empty although a next one exists, because each request filters one page of the store.
        """
        page = await self._store.list(None, request.cursor, _PAGE_SIZE)
        folder = None if request.cwd is None else _parse_folder(request.cwd, must_exist=False)
        sessions = [_describe_record(record) for record in page.items]
        if folder is not None:
            sessions = [info for info in sessions if Path(info.cwd) == folder]
        return schema.ListSessionsResponse(sessions=sessions, next_cursor=page.next_cursor)

    async def close(self, request: schema.CloseSessionRequest) -> schema.CloseSessionResponse:
        """Stop the run of a session, and close it. Does nothing if the session is not open."""
        session = self._open.pop(_parse_id(request.session_id), None)
        if session is not None:
            await session.aclose()
        return schema.CloseSessionResponse()

    async def prompt(self, request: schema.PromptRequest) -> schema.PromptResponse:
        """Send a message and run the agent, with the decisions of the person, until it has answered."""
        session = await self._find(request.session_id)
        return await session.prompt(request.prompt)

    async def cancel(self, request: schema.CancelNotification) -> None:
        """Interrupt the run of a session, if there is one."""
        session = self._open.get(_parse_id(request.session_id))
        if session is not None:
            session.cancel()

    async def set_mode(self, request: schema.SetSessionModeRequest) -> schema.SetSessionModeResponse:
        """Change which calls wait for a person."""
        policy = parse_mode(request.mode_id, self._setup.policy)
        session = await self._find(request.session_id)
        await session.conversation.set_confirmation_policy(policy)
        return schema.SetSessionModeResponse()

    async def set_option(
        self, request: schema.SetSessionConfigOptionSelectRequest
    ) -> schema.SetSessionConfigOptionResponse:
        """Change the model, from the next step on."""
        if request.config_id != MODEL:
            raise NotFound(f"there is no option {request.config_id!r:.80}", hint=f"the option is {MODEL!r}")
        session = await self._find(request.session_id)
        await session.conversation.set_model(request.value)
        return schema.SetSessionConfigOptionResponse(config_options=list_options(session.conversation))

    async def aclose(self) -> None:
        """Close all sessions. Their runs are interrupted, and can be resumed."""
        for task in self._announcing:
            task.cancel()
        sessions = [*self._open.values()]
        self._open.clear()
        for session in sessions:
            await session.aclose()

    async def _find(self, text: str) -> EditorSession:
        """Return an open session, or open it.

        Raises:
            NotFound: The store has no such conversation.
        """
        id = _parse_id(text)
        # Two requests for one session must not open it twice.
        async with self._opening:
            session = self._open.pop(id, None)
            if session is None:
                session = await self._reopen(id)
                self._announce(session)
            self._open[id] = session
            await self._close_surplus()
        return session

    async def _reopen(self, id: UUID) -> EditorSession:
        record = await self._store.get(id)
        folder = Path(str(record.config.get("workspace") or "."))
        conversation = await AsyncConversation.open(
            id,
            store=self._store,
            broker=self._broker.delegation,
            settings=self._setup.settings,
            **self._setup.make_rules(folder, None),
        )
        return EditorSession(conversation, self._editor)

    async def _add(self, conversation: AsyncConversation) -> EditorSession:
        session = EditorSession(conversation, self._editor)
        async with self._opening:
            self._open[conversation.id] = session
            await self._close_surplus()
        self._announce(session)
        return session

    async def _close_surplus(self) -> None:
        idle = [id for id, session in self._open.items() if not session.is_busy]
        for id in idle[: max(len(self._open) - _MAX_OPEN, 0)]:
            await self._open.pop(id).aclose()

    def _announce(self, session: EditorSession) -> None:
        """Send the commands of a session after the answer to the present request, which names the session."""
        commands = list_commands(session.conversation.skills)
        update = schema.AvailableCommandsUpdate(session_update="available_commands_update", available_commands=commands)
        task = asyncio.create_task(session.update(update))
        self._announcing.add(task)
        task.add_done_callback(self._announcing.discard)

    async def _replay(self, session: EditorSession) -> None:
        conversation, steps = session.conversation, StepReader()
        async for stored in self._store.read(conversation.id):
            for step in steps.read(stored):
                if isinstance(step, MessageStep):
                    async for block in show_message(conversation, step.message):
                        chunk = schema.UserMessageChunk(
                            session_update="user_message_chunk", content=block, message_id=step.id
                        )
                        await session.update(chunk)
                    continue
                for update in convert_step(step, conversation.workspace, session.calls):
                    await session.update(update)
        await session.report_usage()

    def _describe(self, session: EditorSession) -> dict[str, Any]:
        conversation = session.conversation
        return {
            "modes": list_modes(conversation.state.policies.get("policy"), self._setup.policy),
            "config_options": list_options(conversation),
            "field_meta": {"bough": {"workspace": str(conversation.workspace), "head": conversation.state.head}},
        }


def _parse_id(text: str) -> UUID:
    """Return the id of a session.

    Raises:
        NotFound: It is not an id.
    """
    try:
        return UUID(text)
    except ValueError:
        raise NotFound(f"there is no session {text!r:.80}", hint="`session/list` has the ids") from None


def _parse_folder(text: str, *, must_exist: bool = True) -> Path:
    folder = Path(text)
    if not folder.is_absolute() or "\0" in text:
        raise InvalidInput(f"cwd {text!r:.200} is not an absolute path", hint="give the folder of the project")
    if must_exist and not folder.is_dir():
        raise InvalidInput(f"cwd {text!r:.200} is not a folder", hint="give the folder of the project")
    return folder


def _refuse_servers(servers: list[Any] | None) -> None:
    """Refuse the MCP servers of a client instead of ignoring them silently.

    Raises:
        InvalidInput: The client names an MCP server.
    """
    if servers:
        raise InvalidInput(
            f"the MCP server {servers[0].name!r:.80} of the client cannot be used",
            hint="remove it in the editor's settings, and name it in the `.mcp.json` of a skill",
        )


async def _read_fork(conversation: AsyncConversation, meta: Mapping[str, Any]) -> dict[str, Any]:
    """Return the options of a fork that `_meta` asks for.

    `bough.at` is the id of the last event to keep, or the number of events to keep; `bough.files` is the fork's
    workspace: `shared`, `copy` or `worktree`. `claudeCode.rewindTo` is the id of the first message that is left out.

    Raises:
        InvalidInput: A value has another form, or both events are set.
        NotFound: The conversation has no such event.
    """
    ours, theirs = _read_object(meta, "bough"), _read_object(meta, "claudeCode")
    at, rewind = ours.get("at"), theirs.get("rewindTo")
    if at is not None and rewind is not None:
        raise InvalidInput("`bough.at` and `claudeCode.rewindTo` are both set", hint="name one place")
    files = ours.get("files", "shared")
    if files not in ("shared", "copy", "worktree"):
        raise InvalidInput(f"bough.files {files!r:.80} is unknown", hint="choose shared, copy or worktree")
    options: dict[str, Any] = {"workspace": files}
    if rewind is not None:
        _, seq = await conversation.store.locate(_parse_event(rewind), cid=conversation.id)
        return {**options, "at": seq}
    if at is not None:
        options["at"] = _parse_event(at) if isinstance(at, str) else at
    return options


def _read_object(meta: Mapping[str, Any], name: str) -> JsonObject:
    value = meta.get(name)
    return cast("JsonObject", value) if isinstance(value, dict) else {}


def _parse_event(value: object) -> UUID:
    try:
        return UUID(str(value))
    except ValueError:
        raise NotFound(f"there is no event {value!r:.80}", hint="message ids are ids of events") from None


def _describe_record(record: ConversationRecord) -> schema.SessionInfo:
    fork = {} if record.forked_from is None else {"forkedFrom": str(record.forked_from), "at": record.forked_at}
    return schema.SessionInfo(
        session_id=str(record.id),
        cwd=str(record.config.get("workspace") or "/"),
        title=record.title or "untitled",
        updated_at=record.updated.isoformat(),
        field_meta={"bough": {"status": record.status, "head": record.head, **fork}},
    )
