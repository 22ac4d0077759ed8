"""`/sockets/events/{id}`: events of one conversation over a WebSocket, as OpenHands' client reads them."""

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
QUICK_SECONDS = 1.0
UNAUTHENTICATED, NOT_THERE, AGAIN_LATER, GOING_AWAY = 4001, 4004, 1013, 1001


class SocketQuery(Form):
    """What is sent of what was before: nothing, all of it, what came since a moment, or what came after a place."""

    resend_mode: Literal["all", "since"] | None = None
    after_timestamp: Moment | None = None
    after: int | None = Field(default=None, ge=-1, le=MAX_SEQ)
    form: Literal["ours", "openhands"] = "openhands"


class _Closed(Exception):
    def __init__(self, code: int) -> None:
        super().__init__(code)
        self.code = code


@routes.websocket("/sockets/events/{id}")
async def follow_events(socket: WebSocket, id: str) -> None:
    """Serve one socket until either side leaves."""
    await socket.accept()
    try:
        key = await _authenticate(socket)
        query = _read_query(socket)
        access = await authenticate(socket, key)
        access.caller.require("read", "conversations")
        await _Socket(socket, access, _read_id(id), query).serve()
    except _Closed as closed:
        await _close(socket, closed.code)
    except NotFound:
        await _close(socket, NOT_THERE)
    except InvalidInput as error:
        await _refuse(socket, error)
    except LimitExceeded:
        await _close(socket, AGAIN_LATER)
    except BoughError as error:
        # The key stays refused: a client that is asked to reconnect later would never stop.
        await _close(socket, UNAUTHENTICATED if isinstance(error, PermissionDenied) else AGAIN_LATER)
    except (WebSocketDisconnect, TimeoutError):
        return  # it has left, or takes nothing: then its connection is ended by its protocol


async def _authenticate(socket: WebSocket) -> str | None:
    """Return the key: of the handshake, or of the first frame. A key in the address is not accepted.

    Raises:
        _Closed: The first frame is no such frame, or did not come in time.
    """
    if "session_api_key" in socket.query_params:
        raise _Closed(UNAUTHENTICATED)  # keys in addresses end up in logs
    key = read_key(socket)
    if key is not None or not await read_services(socket).keys.are_needed():
        return key
    try:
        async with asyncio.timeout(AUTH_SECONDS):
            frame = parse_json(await _receive_text(socket))
    except (TimeoutError, Malformed):
        raise _Closed(UNAUTHENTICATED) from None
    fields = cast("JsonObject", frame) if isinstance(frame, dict) else {}
    session_key = fields.get("session_api_key")
    if fields.get("type") != "auth" or not isinstance(session_key, str):
        raise _Closed(UNAUTHENTICATED)
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
    """Return the first thing that is wrong: which field, and how. Never what was sent."""
    first = error.errors(include_input=False)[0]
    return ": ".join(filter(None, [".".join(map(str, first["loc"])), first["msg"]]))


async def _receive_text(socket: WebSocket) -> str:
    """Return the text of the next frame.

    Raises:
        Malformed: It is not a frame of text.
        WebSocketDisconnect: The other side has left.
    """
    message = await socket.receive()
    if message["type"] == "websocket.disconnect":
        raise WebSocketDisconnect(message.get("code", 1005), message.get("reason"))
    text = message.get("text")
    if not isinstance(text, str):
        raise Malformed("the frame is not text", hint="send JSON in frames of text")
    return text


def _problem_frame(code: str, detail: str, timestamp: str) -> JsonObject:
    frame = {"kind": "ServerErrorEvent", "source": "environment", "code": code, "detail": detail}
    return {"id": str(new_id()), "timestamp": timestamp, **frame}


async def _refuse(socket: WebSocket, error: BoughError) -> None:
    """Say what is wrong with the request, and close for good: it would be wrong again."""
    services = read_services(socket)
    async with asyncio.timeout(services.server.send_seconds):
        await socket.send_json(_problem_frame(error.code, public_message(error), stamp(services.clock.now())))
    await _close(socket, NOT_THERE)


async def _close(socket: WebSocket, code: int) -> None:
    try:
        await socket.close(code)
    except RuntimeError:
        return  # the other side has closed already


def _asks_for_deltas(record: ConversationRecord, state: State) -> bool:
    """Whether pieces of responses are sent: OpenHands' clients expect them only where the posted agent asks for them.

    An agent that was not posted in OpenHands' form has no field for it; its pieces are sent.
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
        self._sending = asyncio.Lock()
        self._sends_deltas = True
        self._tasks: list[asyncio.Task[None]] = []

    async def serve(self) -> None:
        """Send and receive until one of both ends.

        Raises:
            NotFound: The conversation is not there, or another tenant's.
            LimitExceeded: There are too many sockets.
            _Closed: It ends with a code.
        """
        services = self._access.services
        record = await self._access.store.get(self._cid)
        state = await services.states.state_of(record)
        self._sends_deltas = self._query.form == "ours" or _asks_for_deltas(record, state)
        async with AsyncExitStack() as stack:
            stack.enter_context(services.limits.stream(self._access.caller))
            if services.broadcasts.count_readers(self._cid) >= MAX_SOCKETS:
                raise _Closed(AGAIN_LATER)
            broadcast = await stack.enter_async_context(services.broadcasts.join(self._cid, kind="socket"))
            if self._query.after is not None and self._query.after >= max(broadcast.head, 1):
                raise InvalidInput("after: not a place in this conversation", hint=f"-1 to {broadcast.head - 1}")
            works = [self._send_all(broadcast), self._receive_all(), self._watch_key()]
            self._tasks = [asyncio.create_task(work) for work in works]
            try:
                done, _ = await asyncio.wait(self._tasks[:], return_when=asyncio.FIRST_COMPLETED)
            finally:
                for task in self._tasks:
                    task.cancel()
                await asyncio.gather(*self._tasks, return_exceptions=True)
            for task in done:
                task.result()

    async def _send_all(self, broadcast: Broadcast) -> None:
        head = broadcast.head  # the subscription begins before the state is read: nothing falls between
        await self._send_state()
        after, since = self._begin(head)
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
            field = "reasoning_content" if update.kind == "thinking" else "content"
            delta = {"kind": "StreamingDeltaEvent", "source": "agent", field: update.text}
            await self._send({"id": str(new_id()), "timestamp": self._now(), **delta})
        if isinstance(update, StreamEnd):
            raise _Closed(NOT_THERE if update.reason == "deleted" else GOING_AWAY)

    async def _send_end_of_run(self, ended: RunEnded) -> None:
        """Send the state after a run, not before the client can be listening for it; of a quick run once more.

        The client begins to wait only after POST /run was answered, on another thread; a state that came before is
        lost to it.
        """
        clock = asyncio.get_running_loop().time
        took = clock() - ended.started
        await asyncio.sleep(max(0.0, FRAME_7_SECONDS - took))
        await self._send_state()
        if took < QUICK_SECONDS:
            await asyncio.sleep(QUICK_SECONDS)
            if not await self._access.services.runs.is_live(self._cid):
                await self._send_state()

    async def _send_state(self) -> None:
        document = await info(self._access, self._cid)
        last = await self._access.store.tail(self._cid, 1)
        frame = {"kind": "ConversationStateUpdateEvent", "source": "environment", "key": "full_state"}
        place = {"id": state_id(last[0].id if last else None), "timestamp": self._now()}
        await self._send({**place, **frame, "value": document.model_dump(mode="json")})

    def _begin(self, head: int) -> tuple[int, str | None]:
        """Return the seq after which events are sent, and the time from which on."""
        if self._query.after is not None:
            return self._query.after, None
        if self._query.resend_mode is None:
            return head - 1, None
        value = self._query.after_timestamp if self._query.resend_mode == "since" else None
        return -1, None if value is None else stamp(value)

    async def _receive_all(self) -> None:
        while True:
            try:
                await self._take(parse_json(await _receive_text(self._socket)))
            except ValidationError as error:
                await self._send_problem("invalid_input", _describe(error))
            except BoughError as error:
                await self._send_problem(error.code, public_message(error))

    async def _take(self, frame: Any) -> None:
        if isinstance(frame, dict) and cast("JsonObject", frame).get("type") == "auth":
            return  # a client with a key says so even where none is needed
        value = NewMessage.model_validate(frame)
        message = value.event()
        access = self._access
        access.caller.require("write", "conversations")
        access.services.limits.count_request(access.caller)
        async with open_conversation(access, self._cid) as conversation:
            await say(access, conversation, message, run=value.run or "run" not in value.model_fields_set)

    async def _watch_key(self) -> None:
        """End the socket within a second after its key was revoked."""
        await wait_refused(self._access)
        raise _Closed(UNAUTHENTICATED)

    async def _send_problem(self, code: str, detail: str) -> None:
        await self._send(_problem_frame(code, detail, self._now()))

    async def _send(self, frame: JsonObject) -> None:
        async with self._sending, asyncio.timeout(self._access.services.server.send_seconds):
            await self._socket.send_text(json.dumps(frame, ensure_ascii=False, separators=(",", ":")))

    def _now(self) -> str:
        return stamp(self._access.services.clock.now())
