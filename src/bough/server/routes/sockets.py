"""`/sockets/events/{id}`: the events of one conversation over a WebSocket, for OpenHands' client."""

from __future__ import annotations

import asyncio
import json
from contextlib import AsyncExitStack
from typing import Any, Literal, cast
from uuid import UUID

from fastapi import WebSocket, WebSocketDisconnect
from pydantic import Field, ValidationError

from bough.conversation import State
from bough.errors import BoughError, InvalidInput, LimitExceeded, Malformed, NotFound, PermissionDenied, public_message
from bough.events.record import ConversationRecord, StoredEvent
from bough.server.access import Access, authenticate, read_key, read_services, wait_refused
from bough.server.bodies.base import MAX_SEQ, Form, Moment, stamp
from bough.server.bodies.events import NewMessage
from bough.server.bodies.openhands_agents import is_posted_in_force
from bough.server.bodies.openhands_events import state_id
from bough.server.conversations.conversation import info, open_conversation, say
from bough.server.live.broadcast import Broadcast, Fragment, RunEnded, StreamEnd, StreamItem
from bough.server.requests.routing import router
from bough.server.requests.strict_json import parse_json
from bough.types import JsonObject, new_id

routes = router("Sockets")

AUTH_SECONDS = 10.0
MAX_SOCKETS = 100
FRAME_7_SECONDS = 0.15
"""Minimum time between the start of a run and the state after it: the client must be waiting for the state by then."""

QUICK_SECONDS = 1.0
"""The state after a shorter run is sent twice, because the client may have missed the first one."""

UNAUTHENTICATED, NOT_FOUND, TRY_AGAIN_LATER, GOING_AWAY = 4001, 4004, 1013, 1001


class SocketQuery(Form):
    """Which earlier events are sent: none, all, those since a time, or those after a position."""

    resend_mode: Literal["all", "since"] | None = None
    after_timestamp: Moment | None = None
    after: int | None = Field(default=None, ge=-1, le=MAX_SEQ)
    form: Literal["ours", "openhands"] = "openhands"


class _CloseSocket(Exception):
    """Raised to close the socket with a code."""

    def __init__(self, code: int) -> None:
        super().__init__(code)
        self.code = code


@routes.websocket("/sockets/events/{id}")
async def follow_events(socket: WebSocket, id: str) -> None:
    """Serve one socket until one side closes it."""
    await socket.accept()
    try:
        key = await _receive_key(socket)
        query = _read_query(socket)
        access = await authenticate(socket, key)
        access.caller.require("read", "conversations")
        await _Socket(socket, access, _read_id(id), query).serve()
    except _CloseSocket as close:
        await _close(socket, close.code)
    except NotFound:
        await _close(socket, NOT_FOUND)
    except InvalidInput as error:
        await _refuse(socket, error)
    except LimitExceeded:
        await _close(socket, TRY_AGAIN_LATER)
    except BoughError as error:
        # A missing permission is final: with TRY_AGAIN_LATER the client would reconnect for ever.
        await _close(socket, UNAUTHENTICATED if isinstance(error, PermissionDenied) else TRY_AGAIN_LATER)
    except (WebSocketDisconnect, TimeoutError):
        return  # the client has disconnected, or reads nothing: then the protocol closes the connection


async def _receive_key(socket: WebSocket) -> str | None:
    """Return the key in the handshake or in the first frame; None if the server needs no key.

    Raises:
        _CloseSocket: The URL contains a key, or the first frame contains none or did not arrive in time.
    """
    if "session_api_key" in socket.query_params:
        raise _CloseSocket(UNAUTHENTICATED)  # keys in URLs end up in logs
    key = read_key(socket)
    if key is not None or not await read_services(socket).keys.are_needed():
        return key
    try:
        async with asyncio.timeout(AUTH_SECONDS):
            frame = parse_json(await _receive_text(socket))
    except (TimeoutError, Malformed):
        raise _CloseSocket(UNAUTHENTICATED) from None
    fields = cast("JsonObject", frame) if isinstance(frame, dict) else {}
    session_key = fields.get("session_api_key")
    if fields.get("type") != "auth" or not isinstance(session_key, str):
        raise _CloseSocket(UNAUTHENTICATED)
    return session_key


def _read_query(socket: WebSocket) -> SocketQuery:
    try:
        return SocketQuery.model_validate(dict(socket.query_params))
    except ValidationError as error:
        raise InvalidInput(_describe(error), hint="see /docs") from error


def _read_id(text: str) -> UUID:
    try:
        return UUID(text)
    except ValueError:
        raise NotFound("there is no such conversation") from None


def _describe(error: ValidationError) -> str:
    """Return the first invalid field and what is wrong with it, without the value that was sent."""
    first = error.errors(include_input=False)[0]
    field = ".".join(map(str, first["loc"]))
    return f"{field}: {first['msg']}" if field else first["msg"]


async def _receive_text(socket: WebSocket) -> str:
    """Return the text of the next frame.

    Raises:
        Malformed: The frame is not text.
        WebSocketDisconnect: The client has disconnected.
    """
    message = await socket.receive()
    if message["type"] == "websocket.disconnect":
        raise WebSocketDisconnect(message.get("code", 1005), message.get("reason"))
    text = message.get("text")
    if not isinstance(text, str):
        raise Malformed("the frame is not text", hint="send JSON in text frames")
    return text


def _problem_frame(code: str, detail: str, timestamp: str) -> JsonObject:
    frame = {"kind": "ServerErrorEvent", "source": "environment", "code": code, "detail": detail}
    return {"id": str(new_id()), "timestamp": timestamp, **frame}


async def _refuse(socket: WebSocket, error: BoughError) -> None:
    """Send an error, and close the socket with a code after which the client does not reconnect."""
    services = read_services(socket)
    async with asyncio.timeout(services.server.send_seconds):
        await socket.send_json(_problem_frame(error.code, public_message(error), stamp(services.clock.now())))
    await _close(socket, NOT_FOUND)


async def _close(socket: WebSocket, code: int) -> None:
    try:
        await socket.close(code)
    except RuntimeError:
        return  # the client has closed the socket


def _wants_deltas(record: ConversationRecord, state: State) -> bool:
    """Whether pieces of responses are sent. OpenHands' clients expect them only if the posted agent has `stream`.

    For an agent that was not posted in OpenHands' form, they are always sent.
    """
    posted: JsonObject = record.config.get("posted") or {}
    if not is_posted_in_force(posted, state.agent):
        return True
    llm: JsonObject = posted["agent"].get("llm") or {}
    return bool(llm.get("stream"))


class _Socket:
    """One accepted and authenticated socket."""

    def __init__(self, socket: WebSocket, access: Access, cid: UUID, query: SocketQuery) -> None:
        self._socket = socket
        self._access = access
        self._cid = cid
        self._query = query
        self._send_lock = asyncio.Lock()
        self._sends_deltas = True
        self._tasks: list[asyncio.Task[None]] = []

    async def serve(self) -> None:
        """Send and receive until sending or receiving ends.

        Raises:
            NotFound: The tenant has no such conversation.
            LimitExceeded: The caller has the maximum number of streams.
            _CloseSocket: The socket must be closed with a code.
        """
        services = self._access.services
        record = await self._access.store.get(self._cid)
        state = await services.states.state_of(record)
        self._sends_deltas = self._query.form == "ours" or _wants_deltas(record, state)
        async with AsyncExitStack() as stack:
            stack.enter_context(services.limits.stream(self._access.caller))
            if services.broadcasts.count_readers(self._cid) >= MAX_SOCKETS:
                raise _CloseSocket(TRY_AGAIN_LATER)
            broadcast = await stack.enter_async_context(services.broadcasts.join(self._cid, kind="socket"))
            if self._query.after is not None and self._query.after >= max(broadcast.head, 1):
                hint = f"use -1 to {broadcast.head - 1}"
                raise InvalidInput("after: not a position in this conversation", hint=hint)
            coroutines = [self._send_all(broadcast), self._receive_all(), self._watch_key()]
            self._tasks = [asyncio.create_task(coroutine) for coroutine in coroutines]
            try:
                done, _ = await asyncio.wait(self._tasks[:], return_when=asyncio.FIRST_COMPLETED)
            finally:
                for task in self._tasks:
                    task.cancel()
                await asyncio.gather(*self._tasks, return_exceptions=True)
            for task in done:
                task.result()

    async def _send_all(self, broadcast: Broadcast) -> None:
        head = broadcast.head  # read before the state, so that no event is missed
        await self._send_state()
        after, since = self._find_start(head)
        form = self._access.services.form_for(ours=self._query.form == "ours")
        calls: dict[str, str] = {}
        async for update in broadcast.read(after):
            match update:
                case StoredEvent():
                    calls |= form.calls_made(update)
                    if since is None or stamp(update.ts) >= since:
                        for part in form.encode(update, calls):
                            await self._send(part)
                case RunEnded():
                    self._tasks.append(asyncio.create_task(self._send_end_of_run(update)))
                    self._tasks = [task for task in self._tasks if not task.done()]
                case _:
                    await self._send_other(update)

    async def _send_other(self, update: StreamItem) -> None:
        if isinstance(update, Fragment) and self._sends_deltas:
            field = "reasoning_content" if update.piece.kind == "thinking" else "content"
            delta = {"kind": "StreamingDeltaEvent", "source": "agent", field: update.piece.text}
            await self._send({"id": str(new_id()), "timestamp": self._now(), **delta})
        if isinstance(update, StreamEnd):
            raise _CloseSocket(NOT_FOUND if update.reason == "deleted" else GOING_AWAY)

    async def _send_end_of_run(self, run_end: RunEnded) -> None:
        """Send the state after a run when the client waits for it; after a quick run send it again.

        The client begins to wait in another thread, after the response to POST /run. It misses a state that is sent
        earlier.
        """
        clock = asyncio.get_running_loop().time
        run_seconds = clock() - run_end.started
        await asyncio.sleep(max(0.0, FRAME_7_SECONDS - run_seconds))
        await self._send_state()
        if run_seconds < QUICK_SECONDS:
            await asyncio.sleep(QUICK_SECONDS)
            if not await self._access.services.runs.is_live(self._cid):
                await self._send_state()

    async def _send_state(self) -> None:
        document = await info(self._access, self._cid)
        last = await self._access.store.tail(self._cid, 1)
        frame = {"kind": "ConversationStateUpdateEvent", "source": "environment", "key": "full_state"}
        header = {"id": state_id(last[0].id if last else None), "timestamp": self._now()}
        await self._send({**header, **frame, "value": document.model_dump(mode="json")})

    def _find_start(self, head: int) -> tuple[int, str | None]:
        """Return the seq after which events are sent, and the time since when; None for any time."""
        if self._query.after is not None:
            return self._query.after, None
        if self._query.resend_mode is None:
            return head - 1, None
        if self._query.resend_mode == "all" or self._query.after_timestamp is None:
            return -1, None
        return -1, stamp(self._query.after_timestamp)

    async def _receive_all(self) -> None:
        while True:
            try:
                await self._process(parse_json(await _receive_text(self._socket)))
            except ValidationError as error:
                await self._send_problem("invalid_input", _describe(error))
            except BoughError as error:
                await self._send_problem(error.code, public_message(error))

    async def _process(self, frame: Any) -> None:
        if isinstance(frame, dict) and cast("JsonObject", frame).get("type") == "auth":
            return  # clients send their key even if the server needs none
        body = NewMessage.model_validate(frame)
        message = body.event()
        access = self._access
        access.caller.require("write", "conversations")
        access.services.limits.count_request(access.caller)
        async with open_conversation(access, self._cid) as conversation:
            await say(access, conversation, message, run=body.run or "run" not in body.model_fields_set)

    async def _watch_key(self) -> None:
        """Close the socket when its key is no longer valid; checked once a second."""
        await wait_refused(self._access)
        raise _CloseSocket(UNAUTHENTICATED)

    async def _send_problem(self, code: str, detail: str) -> None:
        await self._send(_problem_frame(code, detail, self._now()))

    async def _send(self, frame: JsonObject) -> None:
        async with self._send_lock, asyncio.timeout(self._access.services.server.send_seconds):
            await self._socket.send_text(json.dumps(frame, ensure_ascii=False, separators=(",", ":")))

    def _now(self) -> str:
        return stamp(self._access.services.clock.now())
