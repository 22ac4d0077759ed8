"""What an open conversation of a server is, and what people set and decide of it; its run obeys at its next step."""

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
from bough.conversation.remote.bodies import limits_body
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
    """An open conversation of a server without its runs and forks: its state, its rules, decisions on its calls.

    Properties say what was read last and ask nobody.
    """

    def __init__(self, transport: ServerTransport, record: ConversationRecord) -> None:
        self._listeners = Listeners(record.id)
        super().__init__(record, self._listeners.listeners)
        self._transport = transport
        self._path = f"/api/conversations/{record.id}"
        self._log = RemoteLog(transport, record.id)
        self._view = View()
        self._fold = Fold(view=self._view)
        self._folding = asyncio.Lock()
        self._was_interrupted = False

    @property
    def state(self) -> State:
        """The fold of the events that were read."""
        return self._fold.state

    async def messages(self) -> list[ModelMessage]:
        """Return what the model is shown of it, as PydanticAI's messages."""
        return self._view.messages()

    @property
    def agent(self) -> AgentSpec:
        """The agent in use, as its log has it."""
        return read_recorded_spec(self.state)

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

    async def refresh(self) -> None:
        """Read the events that came since. O(new events)."""
        async with self._folding:
            async for stored in self._log.read(self.state.head):
                self._take(stored)

    async def pause(self, *, by: str = "user", reason: str = "") -> None:
        """Ask the run to stop at its next step. The server records the key's name, whatever `by` says."""
        await self._post("pause", {"reason": reason})
        await self.refresh()

    async def interrupt(self, *, by: str = "user", reason: str = "") -> None:
        """Stop the run now, whichever process started it: tools and scripts are killed. It can be resumed."""
        self._was_interrupted = True
        await self._post("interrupt", {"reason": reason}, query={"wait": "true"}, key=new_id())
        await self.refresh()

    async def adopt(self, *, by: str = "user", policy: Policy | None = None) -> None:
        """End the quarantine of what was imported; see `AsyncConversation.adopt`. The server records the key's name.

        Raises:
            Conflict: It is not in quarantine.
        """
        await self._post("adopt", {"policy": None if policy is None else policy.to_json()})
        await self.refresh()

    async def approve(
        self, *calls: str, by: str = "user", reason: str = "", arguments: JsonObject | None = None
    ) -> None:
        """Let waiting calls run; all that wait for an approval where none is named. The next `run` runs them.

        Args:
            reason: Why, for the record.
            arguments: Run the one call that is named with these arguments instead.

        Raises:
            Conflict: No call waits for an approval, or a call that is named does not wait: nothing is approved then.
            InvalidInput: A call that is named waits for an answer; `arguments` without exactly one call.
        """
        await self.refresh()
        await self._decide(choose_approved(self.state, calls, by=by, reason=reason, arguments=arguments))

    async def reject(self, *calls: str, reason: str = "", by: str = "user") -> None:
        """Refuse waiting calls; all of them where none is named. The model is told why at the next `run`.

        Raises:
            Conflict: No call waits, or a call that is named does not: nothing is rejected then.
        """
        await self.refresh()
        await self._decide(choose_rejected(self.state, calls, by=by, reason=reason))

    async def answer(self, call: str, value: Any, *, by: str = "user") -> None:
        """Give a waiting call its result; see `AsyncConversation.answer`.

        Raises:
            Conflict: The call does not wait.
            InvalidInput: The value is none of the question's choices, or cannot be encoded.
        """
        await self.refresh()
        await self._decide(choose_answer(self.state, call, encode_result(value), by=by))

    async def append(self, *events: Event) -> NoReturn:
        """Raise `NotSupported`: only the server appends to its logs."""
        raise NotSupported("events are not appended over HTTP", hint="send_message")

    async def set_title(self, title: str) -> None:
        """Give it a title."""
        await self._change({"title": title})

    async def set_tags(self, tags: Mapping[str, str]) -> None:
        """Give it these tags and no others."""
        await self._change({"tags": dict(tags)})

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

    async def set_model(self, model: str | Model) -> None:
        """Continue with another model from the next step.

        Raises:
            NotSupported: It is a model object, which cannot be sent.
        """
        if not isinstance(model, str):
            raise NotSupported("a model object cannot be sent to a server", hint="name the model")
        await self._post("model", {"model": model})
        await self.refresh()

    # How it does it.

    def _take(self, stored: StoredEvent) -> None:
        """Fold an event and tell of it, once."""
        if stored.seq == self.state.head:
            self._fold.apply(stored.event)
            self._listeners.notify(stored)

    async def _decide(self, decision: CallDecision) -> None:
        """Have the server record a decision, call by call: it knows them by their ids."""
        decide(self.state, decision)  # refuses what does not wait before anything is sent
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
