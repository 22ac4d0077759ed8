"""State, rules and decisions of an open conversation on a server. A run applies changes at its next step."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping
from typing import Any, NoReturn
from uuid import UUID

from pydantic_ai.messages import ModelMessage
from pydantic_ai.models import Model

from bough.agents.spec import AgentSpec
from bough.conversation.agent import read_recorded_spec
from bough.conversation.base import ConversationBase
from bough.conversation.log.listeners import Listeners
from bough.conversation.log.state import Fold, State
from bough.conversation.log.tool_result import encode_result
from bough.conversation.log.view import View
from bough.conversation.remote.bodies import make_limits_body
from bough.conversation.remote.events import RemoteLog
from bough.conversation.remote.transport import ServerTransport
from bough.conversation.result import T
from bough.conversation.run.waiting.decision import (
    CallDecision,
    choose_answer,
    choose_approved,
    choose_rejected,
    decide,
)
from bough.errors import InvalidInput, NotSupported
from bough.events.model import Event
from bough.events.record import ConversationRecord, StoredEvent
from bough.guard import Limits, Policy
from bough.types import JsonObject, new_id


class RemoteControl(ConversationBase[T]):
    """An open conversation on a server, without its runs and forks: its state, its rules, decisions on its calls.

    Properties return the state that was read last, and send no request.
    """

    def __init__(self, transport: ServerTransport, record: ConversationRecord) -> None:
        self._listeners = Listeners(record.id)
        super().__init__(record, self._listeners.listeners)
        self._transport = transport
        self._path = f"/api/conversations/{record.id}"
        self._log = RemoteLog(transport, record.id)
        self._view = View()
        self._fold = Fold(view=self._view)
        self._apply_lock = asyncio.Lock()
        self._was_interrupted = False

    @property
    def state(self) -> State:
        """The state after the events that were read."""
        return self._fold.state

    async def messages(self) -> list[ModelMessage]:
        """Return the view of the conversation that the model gets, as PydanticAI messages."""
        return self._view.messages()

    @property
    def agent(self) -> AgentSpec:
        """The recorded agent of the conversation."""
        return read_recorded_spec(self.state)

    @property
    def events(self) -> AsyncIterator[StoredEvent]:
        """Iterate over the events on the server, including those shared with the source of a fork."""
        return self._log.read()

    @property
    def server(self) -> str:
        """The address of the server."""
        return self._transport.url

    @property
    def skills(self) -> NoReturn:
        """Not available: raises `NotSupported`."""
        raise NotSupported("skills are the server's", hint="GET /api/skills")

    @property
    def executor(self) -> NoReturn:
        """Not available: raises `NotSupported`."""
        raise NotSupported("the executor is the server's", hint="the operator chooses it")

    @property
    def settings(self) -> NoReturn:
        """Not available: raises `NotSupported`."""
        raise NotSupported("settings are the operator's", hint="ask the operator")

    @property
    def store(self) -> NoReturn:
        """Not available: raises `NotSupported`."""
        raise NotSupported("the store is the server's", hint="`events` reads the log")

    async def refresh(self) -> None:
        """Read the new events from the server. O(new events)."""
        async with self._apply_lock:
            async for stored in self._log.read(self.state.head):
                self._apply_event(stored)

    async def pause(self, *, by: str = "user", reason: str = "") -> None:
        """Ask the run to stop at its next step. The server ignores `by` and records the name of the API key."""
        await self._post("pause", {"reason": reason})
        await self.refresh()

    async def interrupt(self, *, by: str = "user", reason: str = "") -> None:
        """Stop the run now, whichever process started it, and kill its tools and scripts. The run can be resumed."""
        self._was_interrupted = True
        await self._post("interrupt", {"reason": reason}, query={"wait": "true"}, key=new_id())
        await self.refresh()

    async def adopt(self, *, by: str = "user", policy: Policy | None = None) -> None:
        """End the quarantine of an imported conversation; see `AsyncConversation.adopt`.

        The server ignores `by` and records the name of the API key.

        Raises:
            Conflict: The conversation is not in quarantine.
        """
        await self._post("adopt", {"policy": None if policy is None else policy.to_json()})
        await self.refresh()

    async def approve(
        self, *calls: str, by: str = "user", reason: str = "", arguments: JsonObject | None = None
    ) -> None:
        """Approve the given calls, or all that wait for an approval if none are given. The next `run` runs them.

        Args:
            reason: Why, for the record.
            arguments: Replace the arguments of the call; `calls` must then be exactly one call.

        Raises:
            Conflict: No call waits for an approval, or a given call does not wait. No call is approved then.
            InvalidInput: A given call waits for an answer; or there are `arguments` but not exactly one call.
        """
        await self.refresh()
        await self._decide(choose_approved(self.state, calls, by=by, reason=reason, arguments=arguments))

    async def reject(self, *calls: str, reason: str = "", by: str = "user") -> None:
        """Reject the given calls, or all waiting calls if none are given. The next `run` shows the model the reason.

        Raises:
            Conflict: No call waits, or a given call does not wait. No call is rejected then.
        """
        await self.refresh()
        await self._decide(choose_rejected(self.state, calls, by=by, reason=reason))

    async def answer(self, call: str, value: object, *, by: str = "user") -> None:
        """Give a waiting call its result; see `AsyncConversation.answer`.

        Raises:
            Conflict: The call does not wait.
            InvalidInput: The value is not one of the question's choices, or cannot be encoded as JSON.
        """
        await self.refresh()
        await self._decide(choose_answer(self.state, call, encode_result(value), by=by))

    async def append(self, *events: Event) -> NoReturn:
        """Raise `NotSupported`: only the server appends to its logs."""
        raise NotSupported("events cannot be appended over HTTP", hint="use send_message")

    async def set_title(self, title: str) -> None:
        """Set the title of the conversation."""
        await self._change({"title": title})

    async def set_tags(self, tags: Mapping[str, str]) -> None:
        """Replace the tags of the conversation."""
        await self._change({"tags": dict(tags)})

    async def set_confirmation_policy(self, policy: Policy) -> None:
        """Change which calls wait for a person, from the next call on."""
        await self._post("confirmation_policy", {"policy": policy.to_json()})
        await self.refresh()

    async def set_limits(self, *limits: Limits) -> None:
        """Change the limits per run, from the next step on.

        Raises:
            InvalidInput: No limits are given.
            NotSupported: There are limits per conversation.
        """
        if not limits:
            raise InvalidInput("no limits were given", hint="give Limits(…); Limits(steps=None) has no bound of steps")
        await self._post("limits", make_limits_body(limits))
        await self.refresh()

    async def set_model(self, model: str | Model, *, base_url: str | None = None) -> None:
        """Continue with another model from the next step.

        Raises:
            NotSupported: `model` is an object, which cannot be sent.
            PermissionDenied: `base_url` was given, and the server would send the operator's key to that address.
        """
        if not isinstance(model, str):
            raise NotSupported("a model object cannot be sent to a server", hint="give the model's name")
        await self._post("model", {"model": model} | ({} if base_url is None else {"base_url": base_url}))
        await self.refresh()

    def _apply_event(self, stored: StoredEvent) -> None:
        """Apply an event to the state and pass it to the listeners. Does nothing if it was applied before."""
        if stored.seq == self.state.head:
            self._fold.apply(stored.event)
            self._listeners.notify(stored)

    async def _decide(self, decision: CallDecision) -> None:
        """Send a decision to the server, one request per call.

        Raises: see `decide`.
        """
        decide(self.state, decision)  # raises before anything is sent
        for call in decision.calls:
            body: JsonObject = {"decision": "approve", "reason": decision.reason, "run": False}
            if call in decision.reject:
                body["decision"] = "reject"
            elif call in decision.answers:
                body |= {"decision": "answer", "value": decision.answers[call]}
            elif call in decision.arguments:
                body["arguments"] = decision.arguments[call]
            await self._post(f"approvals/{call}", body)
        await self.refresh()

    async def _change(self, body: JsonObject) -> None:
        await self._transport.send("PATCH", self._path, body=body)
        await self.refresh()

    async def _post(
        self, name: str, body: JsonObject | None, *, query: Mapping[str, Any] | None = None, key: UUID | None = None
    ) -> Any:
        return await self._transport.send("POST", f"{self._path}/{name}", body=body, query=query, key=key)
