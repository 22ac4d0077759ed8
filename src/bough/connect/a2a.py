"""A client for remote agents over A2A 1.0 and 0.3. Responses are untrusted, and limited in size.

Source: agentic_patterns (`A2AClientExtended`), the A2A protocol 1.0 and 0.3.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import contextmanager
from enum import StrEnum
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar
from urllib.parse import urlsplit
from uuid import uuid4

from bough.connect.config import A2AClientConfig
from bough.errors import ConnectError, NotFound, Unavailable
from bough.types import JsonObject

if TYPE_CHECKING:
    from collections.abc import Generator

    from a2a.client.client import Client
    from a2a.types.a2a_pb2 import AgentCard, SendMessageRequest, Task

MAX_ANSWER_BYTES = 8 << 20
"""Maximum size of a response or a stream; larger ones raise `ConnectError`."""

MAX_STREAM_EVENTS = 10_000

_RETRIED_STATUSES = frozenset({429, 502, 503, 504})
_T = TypeVar("_T")


class TaskStatus(StrEnum):
    """The state of a remote task when waiting for it ends."""

    COMPLETED = "completed"
    FAILED = "failed"
    INPUT_REQUIRED = "input-required"
    CANCELLED = "cancelled"
    TIMEOUT = "timeout"


_FINAL_STATES = {
    "TASK_STATE_COMPLETED": TaskStatus.COMPLETED,
    "TASK_STATE_FAILED": TaskStatus.FAILED,
    "TASK_STATE_REJECTED": TaskStatus.FAILED,
    "TASK_STATE_AUTH_REQUIRED": TaskStatus.FAILED,
    "TASK_STATE_CANCELED": TaskStatus.CANCELLED,
    "TASK_STATE_INPUT_REQUIRED": TaskStatus.INPUT_REQUIRED,
}
_LIVE_STATES = frozenset({"TASK_STATE_SUBMITTED", "TASK_STATE_WORKING"})


class _Peer(NamedTuple):
    card: AgentCard
    polling: Client
    streaming: Client


class A2AClientExtended:
    """A client for one remote agent, which connects on first use. Returns tasks as the protocol's JSON, in camel case.

    If the agent responds with a message and no task, the result is a completed task with that message in its status.
    """

    def __init__(self, config: A2AClientConfig) -> None:
        self.config = config
        self._connecting = asyncio.Lock()
        self._http: Any = None
        self._peer: _Peer | None = None

    async def get_agent_card(self) -> JsonObject:
        """Return the agent's card in the form of A2A 1.0, for either version.

        Raises:
            ConnectError: The agent cannot be reached, or its card is invalid.
            Unavailable: The package of the protocol is not installed.
        """
        from google.protobuf.json_format import MessageToDict

        return MessageToDict((await self._connect()).card)

    async def submit(self, prompt: str, task_id: str | None = None, *, message_id: str | None = None) -> JsonObject:
        """Send a prompt and return its task, which may be live.

        Args:
            task_id: The task that asked for input, which the prompt answers.
            message_id: Identifies the message. An agent that has already received it returns the existing task.

        Raises:
            ConnectError: The agent cannot be reached, or its answer is invalid.
            NotFound: The agent has no such task.
        """
        polling = (await self._connect()).polling
        request = await self._make_request(prompt, task_id, message_id)
        return await self._retry(lambda: self._send(polling, request, task_id))

    async def poll(self, task_id: str) -> JsonObject:
        """Return the current state of a task.

        Raises:
            ConnectError: The agent cannot be reached, or answers with another task.
            NotFound: The agent has no such task.
        """
        from a2a.types.a2a_pb2 import GetTaskRequest

        polling = (await self._connect()).polling
        task = await self._retry(lambda: polling.get_task(GetTaskRequest(id=task_id)))
        return self._read_task(task, task_id)

    async def stream(self, prompt: str, task_id: str | None = None) -> AsyncIterator[JsonObject]:
        """Send a prompt and iterate over the agent's events: `task`, `message`, `statusUpdate`, `artifactUpdate`.

        Raises:
            ConnectError: The agent cannot be reached, or sends more than `MAX_STREAM_EVENTS` or `MAX_ANSWER_BYTES`.
            NotFound: The agent has no such task.
        """
        from google.protobuf.json_format import MessageToDict

        streaming = (await self._connect()).streaming
        request = await self._make_request(prompt, task_id, None)
        count = 0
        with self._translate_errors():
            async for event in streaming.send_message(request):
                count += 1
                if count > MAX_STREAM_EVENTS:
                    raise ConnectError(f"{self._name} sent more than {MAX_STREAM_EVENTS} events", hint="ask for less")
                yield MessageToDict(event)

    async def cancel_task(self, task_id: str) -> JsonObject | None:
        """Cancel a task and return it; None if it has already ended.

        Raises:
            ConnectError: The agent cannot be reached.
            NotFound: The agent has no such task.
        """
        from a2a.types.a2a_pb2 import CancelTaskRequest

        polling = (await self._connect()).polling
        try:
            task = await self._retry(lambda: polling.cancel_task(CancelTaskRequest(id=task_id)))
        except ConnectError:
            # Not every binding has an error for a task that has ended, so the state of the task decides.
            if _FINAL_STATES.get((await self.poll(task_id))["status"]["state"]) in (None, TaskStatus.INPUT_REQUIRED):
                raise
            return None
        return self._read_task(task, task_id)

    async def send_and_observe(
        self, prompt: str, task_id: str | None = None, is_cancelled: Callable[[], bool] | None = None
    ) -> tuple[TaskStatus, JsonObject | None]:
        """Send a prompt and wait until its task ends, asks for input, or exceeds `timeout`.

        Args:
            is_cancelled: Called before each poll; the remote task is cancelled once it returns True.

        Raises:
            ConnectError: The agent cannot be reached, or its answer is invalid.
            NotFound: The agent has no such task.
        """
        return await self.observe(await self.submit(prompt, task_id), is_cancelled)

    async def observe(
        self, task: JsonObject, is_cancelled: Callable[[], bool] | None = None
    ) -> tuple[TaskStatus, JsonObject]:
        """Wait until a task ends, asks for input, or exceeds `timeout`, counted from now."""
        deadline = asyncio.get_running_loop().time() + self.config.timeout
        while (status := _FINAL_STATES.get(task["status"]["state"])) is None:
            if is_cancelled is not None and is_cancelled():
                return TaskStatus.CANCELLED, await self.cancel_task(task["id"]) or await self.poll(task["id"])
            if asyncio.get_running_loop().time() >= deadline:
                return TaskStatus.TIMEOUT, task
            await asyncio.sleep(self.config.poll_interval)
            task = await self.poll(task["id"])
        return status, task

    async def aclose(self) -> None:
        """Close the connections. Idempotent."""
        # Cleared before the await, so that a concurrent second close does not close the client again.
        http, self._http, self._peer = self._http, None, None
        if http is not None:
            await http.aclose()

    @property
    def _name(self) -> str:
        return f"the agent {self.config.name or self.config.url}"

    async def _connect(self) -> _Peer:
        # Held while the card is fetched: concurrent first calls would otherwise fetch it twice and build two peers.
        async with self._connecting:
            if self._peer is None:
                self._peer = self._make_clients(await self._retry(self._read_card))
            return self._peer

    async def _read_card(self) -> AgentCard:
        """Fetch the agent's card, with only the interfaces to which requests may be sent."""
        try:
            from a2a.client.card_resolver import A2ACardResolver

            from bough.connect.a2a_http import make_http
        except ModuleNotFoundError as error:
            raise Unavailable(f"A2A needs the package {error.name}", hint="pip install 'bough[a2a]'") from error
        if self._http is None:
            self._http = make_http(self.config, max_bytes=MAX_ANSWER_BYTES)
        card = await A2ACardResolver(self._http, self.config.url).get_agent_card()
        allowed = [interface for interface in card.supported_interfaces if self._is_allowed(interface.url)]
        if not allowed:
            # The token is sent to every interface, so a card must not choose the host that receives it. The configured
            # address is used instead, because many servers name one that only works on their own machine, such as
            # http://localhost:8000.
            for interface in card.supported_interfaces:
                interface.url = self.config.url
            allowed = list(card.supported_interfaces)
        del card.supported_interfaces[:]
        card.supported_interfaces.extend(allowed)
        return card

    def _is_allowed(self, url: str) -> bool:
        """Whether requests, with their token, may be sent to a URL of the agent's card."""
        configured, target = urlsplit(self.config.url), urlsplit(url)
        is_same = (configured.scheme, configured.netloc) == (target.scheme, target.netloc)
        return is_same or target.hostname in self.config.allow_hosts or target.netloc in self.config.allow_hosts

    def _make_clients(self, card: AgentCard) -> _Peer:
        from a2a.client.client import ClientConfig
        from a2a.client.client_factory import ClientFactory

        def make(*, streaming: bool) -> Client:
            config = ClientConfig(
                streaming=streaming,
                polling=not streaming,
                httpx_client=self._http,
                supported_protocol_bindings=["JSONRPC", "HTTP+JSON"],
                # fasta2a refuses messages without output modes; every server accepts those of its own card.
                accepted_output_modes=list(card.default_output_modes),
            )
            return ClientFactory(config).create(card)

        try:
            return _Peer(card, make(streaming=False), make(streaming=True))
        except ValueError as error:
            raise ConnectError(f"{self._name}: {error}", hint="it must speak JSON-RPC or HTTP+JSON") from error

    async def _make_request(self, prompt: str, task_id: str | None, message_id: str | None) -> SendMessageRequest:
        from a2a.types.a2a_pb2 import Message, Part, Role, SendMessageRequest

        # The protocol requires that a message has the context of its task.
        context = "" if task_id is None else str((await self.poll(task_id)).get("contextId", ""))
        message = Message(
            role=Role.ROLE_USER,
            message_id=message_id or str(uuid4()),
            task_id=task_id or "",
            context_id=context,
            parts=[Part(text=prompt)],
        )
        return SendMessageRequest(message=message)

    async def _send(self, client: Client, request: SendMessageRequest, task_id: str | None) -> JsonObject:
        from google.protobuf.json_format import MessageToDict

        async for answer in client.send_message(request):
            if answer.HasField("task"):
                return self._read_task(answer.task, task_id)
            message = MessageToDict(answer.message)
            return {"id": "", "status": {"state": "TASK_STATE_COMPLETED", "message": message}}
        raise ConnectError(f"{self._name} returned an empty response", hint="check its log")

    def _read_task(self, task: Task, task_id: str | None) -> JsonObject:
        from google.protobuf.json_format import MessageToDict

        if task_id is not None and task.id != task_id:
            raise ConnectError(
                f"{self._name} returned another task: {task.id!r:.80}", hint=f"expected the task {task_id!r}"
            )
        data = MessageToDict(task)
        state = data.get("status", {}).get("state")
        if state not in _FINAL_STATES and state not in _LIVE_STATES:
            raise ConnectError(
                f"{self._name} returned a task in the unknown state {state!r:.80}",
                hint="the agent may use another version of the protocol",
            )
        return data

    async def _retry(self, request: Callable[[], Awaitable[_T]]) -> _T:
        """Call `request`, and retry with exponential backoff after transient errors."""
        delay = self.config.retry_delay
        for _ in range(self.config.max_retries):
            try:
                with self._translate_errors():
                    return await request()
            except ConnectError as error:
                if not _is_transient(error):
                    raise
            await asyncio.sleep(delay)
            delay *= 2
        with self._translate_errors():
            return await request()

    @contextmanager
    def _translate_errors(self) -> Generator[None]:
        from a2a.client.errors import AgentCardResolutionError
        from a2a.utils.errors import A2AError, TaskNotFoundError
        from google.protobuf.json_format import ParseError

        try:
            yield
        except (A2AError, ParseError, ValueError, KeyError) as error:
            # REST of A2A 0.3 has no separate error for a missing task, only the HTTP status.
            is_card = isinstance(error, AgentCardResolutionError)
            if isinstance(error, TaskNotFoundError) or (not is_card and _find_http_status(error) == 404):
                raise NotFound(f"{self._name} has no such task", hint="the agent may have deleted the task") from error
            raise ConnectError(
                f"{self._name}: {error!s:.500}", hint="check its address, its token and its log"
            ) from error


def _is_transient(error: ConnectError) -> bool:
    """Whether a retry may succeed. A read timeout is not transient: the peer may have run the request."""
    import httpx

    causes = list(_list_causes(error))
    is_connection_lost = any(
        isinstance(cause, httpx.TransportError) and not isinstance(cause, httpx.ReadTimeout) for cause in causes
    )
    return is_connection_lost or _find_http_status(error) in _RETRIED_STATUSES


def _find_http_status(error: BaseException) -> int | None:
    import httpx

    statuses = (cause.response.status_code for cause in _list_causes(error) if isinstance(cause, httpx.HTTPStatusError))
    return next(statuses, None)


def _list_causes(error: BaseException) -> Iterator[BaseException]:
    cause: BaseException | None = error
    while cause is not None:
        yield cause
        cause = cause.__cause__
