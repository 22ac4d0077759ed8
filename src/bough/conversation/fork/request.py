"""What a caller says of a fork.

Source: OpenHands `Conversation.fork()`; the fourteen rules are in docs/concepts/fork.md.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from types import NoneType
from typing import TYPE_CHECKING, Any, TypedDict
from uuid import UUID

from bough.conversation.fork.cut import CutPoint, Pending, Snap, Turn
from bough.errors import InvalidInput
from bough.events.draft import check_tags, parse_cut, parse_id
from bough.events.model import ForkedFrom
from bough.events.store import Cut
from bough.types import JsonObject, require_type

if TYPE_CHECKING:
    from pydantic_ai.models import Model

    from bough.agents.spec import AgentSpec
    from bough.conversation.fork.workspace import WorkspacePolicy
    from bough.guard import AllowList, HookSet, Limits, Policy, SecurityAnalyzer


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
