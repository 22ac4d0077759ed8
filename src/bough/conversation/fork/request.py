"""The request for a fork, and the cut that it names.

Source: OpenHands `Conversation.fork()`; the fourteen rules are in docs/concepts/fork.md.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from types import NoneType
from typing import TYPE_CHECKING, Any, Literal, TypeAlias, TypedDict, cast, get_args
from uuid import UUID

from bough.conversation.log.journal import Journal
from bough.conversation.log.recorded_tools import ToolSource
from bough.conversation.log.state import State, ToolCall
from bough.conversation.log.turns import Turn, TurnRecord
from bough.errors import InvalidInput
from bough.events.draft import check_tags, parse_cut, parse_id
from bough.events.model import Event, ForkedFrom, ToolInterrupted
from bough.events.store import Cut
from bough.types import JsonObject, require_type

if TYPE_CHECKING:
    from pydantic_ai.models import Model

    from bough.agents.spec import AgentSpec
    from bough.conversation.agent import AgentLike
    from bough.conversation.fork.workspace import WorkspacePolicy
    from bough.guard import AllowList, Budget, HookSet, Limits, Policy, SecurityAnalyzer


Pending: TypeAlias = Literal["close", "drop", "carry"]
"""What happens to calls that are open at the cut. `close` closes them in the fork. `drop` moves the cut before the
response that made them. `carry` keeps them open, and the fork waits for a new approval of each."""

Snap: TypeAlias = Literal["exact", "turn"]
"""`exact`: the cut is where it was requested. `turn`: it is at the end of the last turn that had ended by then."""

Moment: TypeAlias = Literal["then", "now"]
"""Which files the copy of a fork has: `then`, those at the cut; `now`, the present ones."""

NOT_EXECUTED = "not executed in this fork"

_NOT_RULES = frozenset({"model", "system_prompt", "tools"})
"""Overrides that are not among `GivenRules`."""


@dataclass(frozen=True, kw_only=True)
class CutPoint:
    """A position at which a log can be cut.

    Attributes:
        at: How many events are shared.
        last_id: Id of the last shared event; None if no events are shared.
        closing: Events that close the open calls in the fork.
        carried: Ids of calls that remain open in the fork, each waiting for a new approval.
    """

    at: int
    last_id: UUID | None
    closing: tuple[Event, ...] = ()
    carried: tuple[str, ...] = ()


async def find_cut(
    journal: Journal, at: Cut | Turn | None, *, pending: Pending, snap: Snap = "exact"
) -> tuple[CutPoint, Journal]:
    """Return the cut that `at` names, and a journal that has folded the log up to the cut.

    Events are read only by `Journal.cut`, and none if the cut is the head.

    Args:
        journal: The log, caught up.
        at: The number of events, the id of the last event, or a turn; None for all events.

    Raises:
        InvalidInput: The cut is negative or beyond the head, the turn does not exist, or a call that would be carried
            over has started.
        NotFound: `at` is the id of an event that is not in the log, or a turn of another conversation.
    """
    if pending not in ("close", "drop", "carry") or snap not in ("exact", "turn"):
        raise InvalidInput(
            f"invalid cut: pending={pending!r}, snap={snap!r}",
            hint="pending is close, drop or carry; snap is exact or turn",
        )
    count = await _count_events(journal, at)
    cut_log = await journal.cut(count)
    if snap == "turn":
        turn_end = await _find_turn_end(journal, cut_log.state)
        if turn_end != count:
            cut_log = await journal.cut(turn_end)
    while pending == "drop" and cut_log.state.open_calls:
        cut_log = await journal.cut(cut_log.state.response_seq or 0)
    state = cut_log.state
    if pending == "carry":
        for call in state.open_calls:
            _require_not_started(call)
        carried = tuple(call.id for call in state.open_calls)
        return CutPoint(at=state.head, last_id=state.last_id, carried=carried), cut_log
    closing = [ToolInterrupted(tool_call_id=call.id, tool=call.tool, reason=NOT_EXECUTED) for call in state.open_calls]
    return CutPoint(at=state.head, last_id=state.last_id, closing=tuple(closing)), cut_log


async def _count_events(journal: Journal, at: Cut | Turn | None) -> int:
    """Return how many events are before the cut that `at` names. Raises: see `find_cut`."""
    head = journal.durable
    if isinstance(at, TurnRecord) and at.conversation != journal.cid:
        await journal.store.locate(at.message.id, cid=journal.cid)  # raises unless both share the turn, and its number
    if isinstance(at, Turn):
        return await journal.find_turn(_require_int(at.number))
    if isinstance(at, UUID):
        _, seq = await journal.store.locate(at, cid=journal.cid)
        return seq + 1
    count = head if at is None else _require_int(at)
    if not 0 <= count <= head:
        raise InvalidInput(
            f"cannot cut at {count}: the conversation has {head} events", hint=f"choose a number from 0 to {head}"
        )
    return count


def _require_int(value: object) -> int:
    if isinstance(value, int) and not isinstance(value, bool):
        return value
    raise InvalidInput(
        f"invalid cut {value!r}", hint="give a number of events, the id of the last one to keep, or Turn(n)"
    )


async def _find_turn_end(journal: Journal, state: State) -> int:
    """Return the seq at which the last complete turn before a cut ended.

    If no work was left at the cut, and the cut is the head or the next event is a message, this is the cut itself.
    Otherwise the cut is within a turn, and the previous turn ended where this one began.
    """
    if not state.has_work:
        if state.head == journal.durable:
            return state.head
        ((_, _, next_kind),) = await journal.store.read_ids(journal.cid, state.head, state.head + 1)
        if next_kind == "UserMessage":
            return state.head
    return state.turn_start if state.turns else 0


def make_carried_changes(state: State, calls: tuple[str, ...]) -> dict[str, Any]:
    """Return the changes of a `StateChanged` that make the carried calls of a fork wait for a new approval."""
    if not calls:
        return {}
    waiting = {
        id: {
            "kind": "approval",
            "tool": state.calls[id].tool,
            "arguments": state.calls[id].parsed_arguments,
            "risk": None,
            "reason": "it was called before the fork",
            "by": "fork",
        }
        for id in calls
    }
    return {"status": "waiting_for_confirmation", "waiting": waiting}


def _require_not_started(call: ToolCall) -> None:
    if call.started:
        raise InvalidInput(
            f"the call of {call.tool} has started and cannot be carried over", hint="choose pending=close or drop"
        )


class ForkOverrides(TypedDict, total=False):
    """What a fork changes. Rules can only become stricter; hooks, analyzers and budgets are added to the source's.

    Attributes:
        tools: Where the results of tools come from. `recorded`: no tool runs. If the source made a call with the same
            tool and arguments after the cut, its recorded outcome is used, in order; any other call is refused.
            `recorded-or-run`: any other call runs under the usual rules.
    """

    model: str | Model
    system_prompt: str
    tools: ToolSource
    confirmation_policy: Policy
    security_analyzer: SecurityAnalyzer
    hooks: HookSet
    allow_list: AllowList
    limits: Limits
    budget: Budget | Sequence[Budget]


class ForkOptions(TypedDict, total=False):
    """The arguments of `fork` besides `agent`. All are optional.

    Attributes:
        id: The id of the fork. A repeated call with the same id and arguments returns the same fork.
        title: The title of the fork; None takes that of the source.
        tags: The tags of the fork, in addition to those that it inherits.
        reset_metrics: Whether the fork's usage starts at 0, which is the default. Usage before the cut is then counted
            as inherited.
        at: The number of events to keep, the id of the last one to keep, or `Turn(n)`, which may be a record of
            `turns()`; None keeps all.
        snap: `turn` moves the cut back to the end of a turn; `exact` is the default.
        pending: What happens to calls that are open at the cut: `close`, the default, closes them in the fork, `drop`
            moves the cut before the response that made them, `carry` lets those that have not started wait for an
            approval.
        overrides: Changes in the fork: model, prompt, stricter rules, results of tools from the log of this
            conversation; see `ForkOverrides`.
        inherit_tags: Whether the fork has the tags of its source, which is the default.
        workspace: `shared`, the default, `readonly`, `copy` or `worktree`.
        moment: Which files a copy or a worktree has: `then`, the default, those at the cut; `now` the present ones.
        secrets: `none` withholds all secrets from the fork's scripts.
        reason: Why, for the record.
        actor: Who forks, for the record.
        ephemeral: Whether closing the fork deletes it and the files made for it.
    """

    id: UUID | None
    title: str | None
    tags: Mapping[str, str] | None
    reset_metrics: bool
    at: Cut | Turn | None
    snap: Snap
    pending: Pending
    overrides: ForkOverrides | None
    inherit_tags: bool
    workspace: WorkspacePolicy
    moment: Moment
    secrets: Literal["reference", "none"]
    reason: str | None
    actor: str | None
    ephemeral: bool


@dataclass(frozen=True, kw_only=True)
class ForkRequest:
    """The arguments of a fork; see `AsyncConversation.fork`."""

    id: UUID | None = None
    agent: AgentSpec | None = None
    title: str | None = None
    tags: Mapping[str, str] | None = None
    reset_metrics: bool = True
    at: Cut | Turn | None = None
    snap: Snap = "exact"
    pending: Pending = "close"
    overrides: ForkOverrides = field(default_factory=ForkOverrides)
    inherit_tags: bool = True
    workspace: WorkspacePolicy = "shared"
    moment: Moment = "then"
    secrets: str = "reference"
    reason: str | None = None
    actor: str | None = None
    ephemeral: bool = False

    def __post_init__(self) -> None:
        if self.id is not None:
            object.__setattr__(self, "id", parse_id(self.id))
        for name in ("reset_metrics", "inherit_tags", "ephemeral"):
            require_type(getattr(self, name), bool, name, "give True or False")
        if not isinstance(self.at, Turn):
            object.__setattr__(self, "at", parse_cut(self.at))
        require_type(self.tags, (Mapping, NoneType), "tags", 'for example {"team": "sales"}')
        check_tags(dict(self.tags or {}))
        if self.secrets not in ("reference", "none"):
            raise InvalidInput(f"invalid value of secrets: {self.secrets!r}", hint="give reference or none")
        if self.moment not in ("then", "now"):
            raise InvalidInput(f"invalid value of moment: {self.moment!r}", hint="give then (files at the cut) or now")
        unknown = set(self.overrides) - set(ForkOverrides.__annotations__)
        if unknown:
            valid_names = ", ".join(ForkOverrides.__annotations__)
            raise InvalidInput(
                f"a fork cannot override {', '.join(sorted(unknown))}", hint=f"it can override {valid_names}"
            )
        if self.overrides:
            self._check_overrides()

    @classmethod
    def of(cls, agent: AgentLike | None, options: ForkOptions) -> ForkRequest:
        """Return the request for a fork with these arguments.

        Raises:
            InvalidInput: An argument is invalid.
        """
        from bough.conversation.agent import convert_agent

        arguments: Any = {**options, "overrides": options.get("overrides") or {}}
        return cls(agent=convert_agent(agent), **arguments)

    @property
    def stricter_rules(self) -> JsonObject:
        """The overrides of rules, under the names of `GivenRules`."""
        return {name: value for name, value in self.overrides.items() if name not in _NOT_RULES}

    def _check_overrides(self) -> None:
        # Imports PydanticAI, which a fork without overrides does not need.
        from bough.conversation.rules import check_arguments

        model, prompt = self.overrides.get("model", ""), self.overrides.get("system_prompt", "")
        if not isinstance(model, str) and not hasattr(model, "model_name"):
            raise InvalidInput(
                f"invalid model of type {type(model).__name__}", hint="give its name, or a PydanticAI model"
            )
        require_type(prompt, str, "system_prompt", "give a text")
        if "tools" in self.overrides and self.overrides["tools"] not in get_args(ToolSource):
            raise InvalidInput(
                f"invalid value of tools: {self.overrides['tools']!r}", hint=f"give {' or '.join(get_args(ToolSource))}"
            )
        check_arguments(self.stricter_rules)

    def lineage(self) -> JsonObject:
        """Return the lineage in the fork's row. Two requests have the same lineage if and only if they are equal."""
        identity: JsonObject = {
            "agent": None if self.agent is None else self.agent.snapshot(),
            "at": str(self.at.cut if isinstance(self.at, Turn) else self.at),
            "overrides": self.overrides_json(),
            "flags": [self.reset_metrics, self.snap, self.inherit_tags, self.secrets, self.ephemeral],
            "named": [self.title, None if self.tags is None else dict(self.tags)],
        }
        if self.moment != "then":  # the default is omitted, so that requests of earlier versions keep their digest
            identity["moment"] = self.moment
        digest = hashlib.sha256(json.dumps(identity, sort_keys=True, default=str).encode()).hexdigest()
        overrides = sorted([*self.overrides, *(["agent"] if self.agent else [])])
        lineage: JsonObject = {"reason": self.reason, "actor": self.actor, "overrides": overrides}
        return lineage | {"pending": self.pending, "workspace": self.workspace, "request": digest}

    def describe(self, source: UUID, cut: CutPoint, *, source_head: int, workspace: WorkspacePolicy) -> ForkedFrom:
        """Return the first event that the fork does not share with its source."""
        return ForkedFrom(
            source=source,
            at=cut.at,
            event_id=cut.last_id,
            source_head=source_head,
            actor=self.actor,
            reason=self.reason,
            overrides=self.overrides_json(),
            pending=self.pending,
            workspace=workspace,
            reset_metrics=self.reset_metrics,
        )

    def overrides_json(self) -> JsonObject:
        """Return the overrides and the new agent, as JSON."""
        values: JsonObject = {name: _to_json(value) for name, value in self.overrides.items()}
        return values | ({} if self.agent is None else {"agent": self.agent.snapshot()})


def _to_json(value: Any) -> Any:
    """Return an override as JSON; a model object as its name."""
    if isinstance(value, str):
        return value
    if isinstance(value, Sequence):
        return [_to_json(item) for item in cast("Sequence[Any]", value)]
    to_json = getattr(value, "to_json", None)
    if to_json is not None:
        return to_json()
    from bough.agents.spec import MODEL_OBJECT

    return f"{MODEL_OBJECT}{value.model_name}"
