"""`ForkPreview`: what a fork would keep and inherit."""

from __future__ import annotations

from typing import Literal
from uuid import UUID

from pydantic import BaseModel

from bough.conversation.fork.fork import ForkPlan
from bough.conversation.log.state import add_usage
from bough.events.record import ConversationRecord
from bough.server.bodies.info import Ledger, read_policy
from bough.types import JsonObject


class OpenCall(BaseModel):
    """A call without a result at the cut, and whether the fork closes it or waits for a new approval of it."""

    tool_call_id: str
    tool: str
    started: bool
    outcome: Literal["closed", "carried"]


class ForkPreview(BaseModel):
    """A fork that was not written. It would keep `at` of the `head` events; `event_id` is the last of them.

    `limits`, `hooks` (their number), `secrets` (their names) and `budgets` (their number) are those in force in the
    fork. `inherited` is the usage before the cut.
    """

    at: int
    head: int
    event_id: UUID | None
    turns: int
    agent: str | None
    model: str | None
    has_new_prompt: bool
    confirmation_policy: JsonObject
    limits: JsonObject
    total_limits: JsonObject
    budgets: int
    hooks: int
    secrets: list[str]
    skills: list[str]
    open_calls: list[OpenCall]
    workspace: JsonObject
    inherited: Ledger


def describe_plan(source: ConversationRecord, plan: ForkPlan) -> ForkPreview:
    """Return the document of a planned fork."""
    state, cut, contents = plan.journal.state, plan.cut, plan.contents
    policies = contents.policies
    return ForkPreview(
        at=cut.at,
        head=source.head,
        event_id=cut.last_id,
        turns=state.turns,
        agent=contents.agent.get("name"),
        model=contents.agent.get("model"),
        # A changed prompt means that no request of the fork begins like one that a provider has cached.
        has_new_prompt=contents.instructions != state.instructions,
        confirmation_policy=read_policy(state, policies),
        limits=policies.get("limits") or {},
        total_limits=policies.get("total") or {},
        budgets=len(policies.get("budgets") or ()),
        hooks=len(policies.get("hooks") or ()),
        secrets=sorted(policies.get("secrets") or ()),
        skills=sorted(state.active_skills),
        open_calls=[
            OpenCall(
                tool_call_id=call.id,
                tool=call.tool,
                started=call.started,
                outcome="carried" if call.id in cut.carried else "closed",
            )
            for call in state.open_calls
        ],
        workspace={
            "kind": "LocalWorkspace",
            "working_dir": None if plan.workspace is None else str(plan.workspace),
            "policy": plan.workspace_policy,
        },
        inherited=Ledger.of(add_usage(state.inherited, add_usage(state.own, state.delegated))),
    )
