"""What a caller asks of a fork, and the cut that it names.

Source: OpenHands `Conversation.fork()`; the fourteen rules are in docs/concepts/fork.md.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from types import NoneType
from typing import TYPE_CHECKING, Any, Literal, TypeAlias, TypedDict
from uuid import UUID

from bough.conversation.log.journal import Journal
from bough.conversation.log.state import State, ToolCall
from bough.errors import InvalidInput
from bough.events.draft import check_tags, parse_cut, parse_id
from bough.events.model import Event, ForkedFrom, ToolInterrupted
from bough.events.store import Cut
from bough.types import JsonObject, require_type

if TYPE_CHECKING:
    from pydantic_ai.models import Model

    from bough.agents.spec import AgentSpec
    from bough.conversation.fork.workspace import WorkspacePolicy
    from bough.guard import AllowList, HookSet, Limits, Policy, SecurityAnalyzer


Pending: TypeAlias = Literal["close", "drop", "carry"]
"""What becomes of calls that are open at the cut: closed in the fork, cut off with the response that made them, or
carried over, so that the fork waits for a new approval of each."""

Snap: TypeAlias = Literal["exact", "turn"]
"""Whether the cut is where it is asked for, or at the end of the last turn that was over by then."""

NOT_EXECUTED = "not executed in this fork"


@dataclass(frozen=True)
class Turn:
    """A cut after turn `number`: a message of a user with all that followed from it. 0 is before the first one."""

    number: int

    def __post_init__(self) -> None:
        if isinstance(self.number, bool) or not isinstance(self.number, int):  # pyright: ignore[reportUnnecessaryIsInstance]
            raise InvalidInput(f"invalid turn {self.number!r}", hint="give a whole number; 0 is before the first turn")


@dataclass(frozen=True, kw_only=True)
class CutPoint:
    """A place to cut.

    Attributes:
        at: How many events are shared.
        last: The last shared event; None at 0.
        closing: Events that close the calls that are open there, for the fork alone.
        carried: Ids of calls that stay open, waiting for an approval of their own.
    """

    at: int
    last: UUID | None
    closing: tuple[Event, ...] = ()
    carried: tuple[str, ...] = ()


async def find_cut(
    journal: Journal, at: Cut | Turn | None, *, pending: Pending, snap: Snap = "exact"
) -> tuple[CutPoint, Journal]:
    """Return the cut that `at` names, and the log folded up to there; `journal` has caught up.

    What a fork has to know is in the state at the cut: at the head nothing is read, elsewhere what `Journal.cut` reads.

    Raises:
        InvalidInput: The cut is negative or beyond the head, there is no such turn, or a call that has started is to
            be carried over.
        NotFound: `at` names an event that the log does not have.
    """
    if pending not in ("close", "drop", "carry") or snap not in ("exact", "turn"):
        raise InvalidInput(f"pending={pending!r}, snap={snap!r}", hint="close, drop or carry; exact or turn")
    count = await _count(journal, at)
    cut_log = await journal.cut(count)
    if snap == "turn" and (end := await _end_of_turn(journal, cut_log.state)) != count:
        cut_log = await journal.cut(end)
    while pending == "drop" and cut_log.state.open_calls:
        cut_log = await journal.cut(cut_log.state.responded or 0)
    state = cut_log.state
    match pending:
        case "carry":
            carried = tuple(_never_started(call) for call in state.open_calls)
            return CutPoint(at=state.head, last=state.last, carried=carried), cut_log
        case _:
            closing = [
                ToolInterrupted(tool_call_id=call.id, tool=call.tool, reason=NOT_EXECUTED) for call in state.open_calls
            ]
            return CutPoint(at=state.head, last=state.last, closing=tuple(closing)), cut_log


async def _count(journal: Journal, at: Cut | Turn | None) -> int:
    head = journal.durable
    if isinstance(at, Turn):
        return await journal.find_turn(_require_int(at.number))
    if isinstance(at, UUID):
        return (await journal.store.locate(at, cid=journal.cid))[1] + 1
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


async def _end_of_turn(journal: Journal, state: State) -> int:
    """Return where the last turn ended that was over at a cut: before the next one's message, or at the head."""
    if not state.has_work:
        if state.head == journal.durable:
            return state.head
        ((_, _, kind),) = await journal.store.read_ids(journal.cid, state.head, state.head + 1)
        if kind == "UserMessage":
            return state.head
    return state.turned if state.turns else 0


def make_carried_changes(state: State, calls: tuple[str, ...]) -> dict[str, Any]:
    """Return what a `StateChanged` says of calls that a fork carries over: they wait for an approval of their own."""
    if not calls:
        return {}
    waiting = {
        id: {
            "kind": "approval",
            "tool": state.calls[id].tool,
            "arguments": state.calls[id].given,
            "risk": None,
            "reason": "it was called before the fork",
            "by": "fork",
        }
        for id in calls
    }
    return {"status": "waiting_for_confirmation", "waiting": waiting}


def _never_started(call: ToolCall) -> str:
    if call.started:
        raise InvalidInput(
            f"the call of {call.tool} has started and cannot be carried over", hint="choose pending=close or drop"
        )
    return call.id


class ForkOverrides(TypedDict, total=False):
    """What a fork may do otherwise than its source. Rules only get stricter; hooks and analyzers are added."""

    model: str | Model
    system_prompt: str
    confirmation_policy: Policy
    security_analyzer: SecurityAnalyzer
    hooks: HookSet
    allow_list: AllowList
    limits: Limits


@dataclass(frozen=True, kw_only=True)
class ForkRequest:
    """Everything a caller says of a fork; see `AsyncConversation.fork`."""

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
            raise InvalidInput(f"invalid way to fork secrets: {self.secrets!r}", hint="reference or none")
        unknown = set(self.overrides) - set(ForkOverrides.__annotations__)
        if unknown:
            valid_names = ", ".join(ForkOverrides.__annotations__)
            raise InvalidInput(
                f"a fork cannot override {', '.join(sorted(unknown))}", hint=f"it can override {valid_names}"
            )
        if self.overrides:
            self._check_overrides()

    @property
    def stricter_rules(self) -> JsonObject:
        """The overrides that are rules, by the names of `GivenRules`."""
        return {name: value for name, value in self.overrides.items() if name not in ("model", "system_prompt")}

    def _check_overrides(self) -> None:
        # Imports PydanticAI, which a fork without overrides does not need.
        from bough.conversation.rules import check_arguments

        model, prompt = self.overrides.get("model", ""), self.overrides.get("system_prompt", "")
        if not isinstance(model, str) and not hasattr(model, "model_name"):
            raise InvalidInput(f"model: this is a {type(model).__name__}", hint="give its name, or a PydanticAI model")
        require_type(prompt, str, "system_prompt", "give a text")
        check_arguments(self.stricter_rules)

    def lineage(self) -> JsonObject:
        """Return what the fork's row says of its origin; equal for equal requests, and only for those."""
        identity = {
            "agent": None if self.agent is None else self.agent.snapshot(),
            "at": str(self.at),
            "overrides": self.overrides_json(),
            "flags": [self.reset_metrics, self.snap, self.inherit_tags, self.secrets, self.ephemeral],
            "named": [self.title, None if self.tags is None else dict(self.tags)],
        }
        digest = hashlib.sha256(json.dumps(identity, sort_keys=True, default=str).encode()).hexdigest()
        overrides = sorted([*self.overrides, *(["agent"] if self.agent else [])])
        lineage: JsonObject = {"reason": self.reason, "actor": self.actor, "overrides": overrides}
        return lineage | {"pending": self.pending, "workspace": self.workspace, "request": digest}

    def describe(self, source: UUID, cut: CutPoint, *, source_head: int, workspace: WorkspacePolicy) -> ForkedFrom:
        """Return the first own event of the fork."""
        return ForkedFrom(
            source=source,
            at=cut.at,
            event_id=cut.last,
            source_head=source_head,
            actor=self.actor,
            reason=self.reason,
            overrides=self.overrides_json(),
            pending=self.pending,
            workspace=workspace,
            reset_metrics=self.reset_metrics,
        )

    def overrides_json(self) -> JsonObject:
        """Return what the fork does otherwise, as JSON."""
        values: JsonObject = {name: _plain(value) for name, value in self.overrides.items()}
        return values | ({} if self.agent is None else {"agent": self.agent.snapshot()})


def _plain(value: Any) -> Any:
    if isinstance(value, str):
        return value
    if (to_json := getattr(value, "to_json", None)) is not None:
        return to_json()
    from bough.agents.spec import MODEL_OBJECT

    return f"{MODEL_OBJECT}{value.model_name}"
