"""State, rules and decisions of an open conversation in this process. A run applies changes at its next step."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from dataclasses import replace
from typing import Any

from pydantic_ai.messages import ModelMessage
from pydantic_ai.models import Model

from bough.agents.spec import AgentSpec
from bough.conversation.agent import AgentInForce, require_prices, resolve_spec_model, with_other_model
from bough.conversation.base import ConversationBase
from bough.conversation.fork.workspace import ForkedWorkspace
from bough.conversation.log.journal import Journal
from bough.conversation.log.state import State
from bough.conversation.log.tool_result import encode_result, result_chars
from bough.conversation.parts import Parts
from bough.conversation.quarantine import adopt
from bough.conversation.result import T
from bough.conversation.rules import UNBOUNDED, split_limits
from bough.conversation.run.waiting.approval import Decisions
from bough.errors import InvalidInput, Unavailable
from bough.events.model import BaseEvent, Event, PauseRequested, StateChanged
from bough.events.record import StoredEvent
from bough.events.store import EventStore
from bough.execution.base import CodeExecutor
from bough.guard import Limits, Policy
from bough.settings import Settings
from bough.skills import SkillRegistry
from bough.types import JsonObject, require_type


class ConversationControl(ConversationBase[T]):
    """An open conversation without its runs and forks: its state, its rules, decisions on its calls."""

    def __init__(self, parts: Parts) -> None:
        super().__init__(parts.record, parts.journal.listeners)
        self._parts = parts
        self._log = parts.journal
        self._in_force = parts.rules
        self._agent = AgentInForce(parts.journal.state, parts.agent, parts.environment.settings)
        self._environment = parts.environment.retain()
        self._closed = False
        self._temporary: ForkedWorkspace | None = None

    @property
    def state(self) -> State:
        """The state after the events that this object has read."""
        return self._log.state

    @property
    def _journal(self) -> Journal:
        """The journal.

        Raises:
            Unavailable: The conversation was closed.
        """
        if self._closed:
            raise Unavailable("the conversation is closed", hint=f"open it again: Conversation.open({self.short_id!r})")
        return self._log

    @property
    def agent(self) -> AgentSpec:
        """The agent in use."""
        return self._agent.builder.spec

    @property
    def skills(self) -> SkillRegistry:
        """The skills the agent may use."""
        return self._agent.builder.blueprint.registry

    @property
    def executor(self) -> CodeExecutor:
        """The executor of scripts."""
        return self._environment.executor

    @property
    def settings(self) -> Settings:
        """The settings it was opened with."""
        return self._environment.settings

    @property
    def store(self) -> EventStore:
        """The store of its log."""
        return self._log.store

    @property
    def events(self) -> AsyncIterator[StoredEvent]:
        """Iterate all events, including shared ones, from the store. For a range use `store.read`."""
        return self.store.read(self.id)

    async def messages(self) -> list[ModelMessage]:
        """Return the messages that the model is shown, in PydanticAI's form. O(events) once, then O(messages)."""
        return await self._journal.messages()

    async def pause(self, *, by: str = "user", reason: str = "") -> None:
        """Ask the run to stop at its next step, in whichever process it is. `run` continues from there."""
        await self._journal.append(PauseRequested(by=by, reason=reason))

    async def adopt(self, *, by: str = "user", policy: Policy | None = None) -> None:
        """End the quarantine of an imported conversation. Its recorded rules apply, narrowed by yours and by `policy`.

        Open calls still wait. Until then, every call needs an approval, and scripts run sandboxed without secrets.

        Raises:
            Conflict: The conversation is not in quarantine.
        """
        await adopt(self._journal, self._in_force.local, by=by, policy=policy)

    async def approve(
        self, *calls: str, by: str = "user", reason: str = "", arguments: JsonObject | None = None
    ) -> None:
        """Approve waiting calls. The next `run` runs them.

        Args:
            calls: Ids of calls, as in `state.waiting`; none for all calls that wait for an approval.
            reason: Why, for the record.
            arguments: Replace the arguments of the only call in `calls`. The guard reviews the call again, the log has
                both versions, and the model is informed.

        Raises:
            Conflict: No call waits for an approval, or a call in `calls` does not wait for one.
            InvalidInput: A call in `calls` waits for an answer, or `arguments` is given and `calls` is not one call.
        """
        await Decisions(self._journal).approve(calls, by=by, reason=reason, arguments=arguments)

    async def reject(self, *calls: str, reason: str = "", by: str = "user") -> None:
        """Reject waiting calls. The next `run` tells the model the reason.

        Args:
            calls: Ids of calls; none for all waiting calls.

        Raises:
            Conflict: No call waits, or a call in `calls` does not wait. No call is rejected then.
        """
        await Decisions(self._journal).reject(calls, by=by, reason=reason)

    async def answer(self, call: str, value: Any, *, by: str = "user") -> None:
        """Set the result of a waiting call: of an external tool, or the answer to a question. The tool does not run.

        Args:
            value: A value that a tool may return.

        Raises:
            Conflict: The call does not wait.
            InvalidInput: The value is not one of the question's choices, or cannot be encoded.
        """
        max_chars = result_chars(self.agent.result_tokens, resolve_spec_model(self.agent, self.settings)[0])
        await Decisions(self._journal).answer(call, encode_result(value), by=by, max_chars=max_chars)

    async def append(self, *events: Event) -> None:
        """Append events unchanged, all or none, for example a program's notes or events from elsewhere.

        Raises:
            Conflict: Another writer has appended events since this object last read the log.
        """
        for event in events:
            require_type(event, BaseEvent, "what is appended", "give events, such as UserMessage.text(…)")
        await self._journal.append(*events, expected_head=self.state.head)

    async def set_title(self, title: str) -> None:
        """Set the title."""
        await self._journal.append(StateChanged(changes={"title": title}))

    async def set_tags(self, tags: Mapping[str, str]) -> None:
        """Replace all tags."""
        require_type(tags, Mapping, "tags", 'for example {"team": "sales"}')
        await self._journal.append(StateChanged(changes={"tags": dict(tags)}))

    async def set_confirmation_policy(self, policy: Policy) -> None:
        """Change which calls wait for a person, from the next call on, in whichever process the conversation runs.

        The new policy may be wider than the old one. Rules that were given to another object of the conversation still
        narrow the policy there.
        """
        local = self._in_force.local.override({"confirmation_policy": policy})
        recorded = {"policy": policy.to_json()} | ({"analyzer": local.analyzer.to_json()} if local.analyzer else {})
        await self._journal.append(StateChanged(changes={"policies": recorded}))
        self._in_force.local = local

    async def set_limits(self, *limits: Limits) -> None:
        """Change the limits of each run, of the conversation, or both, from the next step on. They may be wider.

        Raises:
            InvalidInput: No limits are given, or two have the same `per`.
        """
        changes = split_limits(limits)
        if not changes:
            raise InvalidInput("no limits were given", hint="give Limits(…); Limits(steps=None) does not limit steps")
        recorded = {name: bounds.to_json() for name, bounds in changes.items()}
        if "limits" not in recorded and self._in_force().limits != UNBOUNDED:
            recorded["limits"] = self._in_force().limits.to_json()
        await self._journal.append(StateChanged(changes={"policies": recorded}))
        self._in_force.local = replace(self._in_force.local, **changes)

    async def set_model(self, model: str | Model) -> None:
        """Continue with another model, from the next step on, in whichever process the conversation runs.

        Args:
            model: A model string, or a PydanticAI model. The log records only the name of a PydanticAI model, so a run
                in a process without that object is paused with an error.

        Raises:
            InvalidInput: The model is unknown, or a limit of cost needs its prices, which are unknown.
        """
        spec = with_other_model(self.agent, model, self.agent.base_url)
        resolved, name = resolve_spec_model(spec, self.settings)
        rules = self._in_force()
        require_prices(resolved, rules.limits, self.settings.prices, rules.budgets)
        if isinstance(model, str):
            spec = spec.model_copy(update={"model": name})
        self._agent.remember_model(spec)
        await self._journal.append(StateChanged(changes={"agent": spec.snapshot()}))
        self._agent.follow_log()
