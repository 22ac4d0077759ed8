"""Routes for runs: start, pause, interrupt; and for the settings of the next runs."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

from fastapi import Request
from pydantic import Field

from bough.errors import Conflict, NotSupported
from bough.events.record import ConversationRecord
from bough.server.access import Access, Asker, Reader, Writer
from bough.server.bodies.agents import ModelName
from bough.server.bodies.base import Form, LenientForm, Number, Reason, Success, Text
from bough.server.bodies.conversations import read_secrets
from bough.server.bodies.rules import BudgetForm, BudgetId, LimitsForm, parse_openhands_analyzer, parse_openhands_policy
from bough.server.bounds.etag import IdempotencyKey, IfMatch, id_from_key, require_match
from bough.server.conversations.conversation import open_to_ask
from bough.server.conversations.model import change_model
from bough.server.conversations.policies import add_budget, replace_analyzer, replace_limits, replace_policy
from bough.server.requests.routing import ConversationId, router
from bough.tasks import Task, TaskState
from bough.types import JsonObject

routes = router("Runs")

INTERRUPT_WAIT_SECONDS = 5.0


class RunBody(LenientForm):
    """Options of a run. With `wait`, the response is sent when the run has ended, or after that many seconds.

    The conversation spends from `budget` in this run and all later ones.
    """

    wait: Number | None = Field(default=None, ge=0, le=60)
    budget: BudgetId | BudgetForm | None = None


class StopBody(LenientForm):
    """The reason for stopping a run."""

    reason: Reason = ""


class CondenseBody(LenientForm):
    """What a summary must keep, in words for the model that makes it."""

    keep: str = Field(default="", max_length=10_000)


class ModelBody(Form):
    """The model of the next steps. Only an admin may use a base URL that is not in `server.models`."""

    model: ModelName
    base_url: str | None = Field(default=None, min_length=1, max_length=2000)
    api_key: str | None = Field(default=None, min_length=1, max_length=4096, repr=False)


class PolicyBody(LenientForm):
    """The policy that determines which calls wait for a person."""

    policy: JsonObject


class AnalyzerBody(LenientForm):
    """The analyzer that rates the risk of calls; null removes it."""

    security_analyzer: JsonObject | None


class SecretsBody(LenientForm):
    """Secrets by name: strings, or OpenHands' `StaticSecret`s."""

    secrets: dict[str, Any] = Field(max_length=100)


class QuestionBody(LenientForm):
    """A question about a conversation."""

    question: str = Field(min_length=1, max_length=1 << 20, pattern=r"\S")


@routes.post("/api/conversations/{id}/run")
async def run_conversation(
    id: ConversationId,
    access: Writer,
    request: Request,
    body: RunBody | None = None,
    if_match: IfMatch = None,
    idempotency_key: IdempotencyKey = None,
) -> JsonObject:
    """Start a run. Without a body, it also approves the waiting calls of a conversation in OpenHands' form."""
    record = await access.store.get(id)
    require_match(record, if_match)
    runs = access.services.runs
    key = id_from_key(access.caller, request, idempotency_key)
    approve = await _find_calls_to_approve(access, record) if body is None else ()
    if body is not None and body.budget is not None:
        await add_budget(access, record, body.budget)
    task = await runs.start(access.caller, id, approve=approve, key=None if key is None else str(key))
    if await runs.find_asking(id) is not None:
        access.services.broadcasts.publish_run_end(id)  # nothing was started: send the state to readers again
    if body is None or body.wait is None:
        return {"success": True, "task": str(task)}
    return await _describe_end(access, id, await runs.wait(task, body.wait))


async def _find_calls_to_approve(access: Access, record: ConversationRecord) -> Collection[str]:
    """Return the calls that a request without a body approves: all that wait, in a conversation in OpenHands' form.

    Raises:
        PermissionDenied: The key lacks the scope `approve`.
    """
    if record.status != "waiting_for_confirmation" or record.config.get("form") != "openhands":
        return ()
    access.caller.require("write", "approve")
    state = await access.services.states.state_of(record)
    return [id for id, call in state.waiting.items() if call.get("kind", "approval") == "approval"]


async def _describe_end(access: Access, id: ConversationId, task: Task) -> JsonObject:
    state = await access.services.states.state_of(await access.store.get(id))
    is_live = task.state in (TaskState.PENDING, TaskState.RUNNING)
    return {
        "task": task.id,
        "status": "running" if is_live else state.status,
        "output": state.output,
        "reason": _find_reason(task),
        "head": state.head,
        "steps": task.usage.requests,
    }


def _find_reason(task: Task) -> str | None:
    """Return the error of a task, or else the reason of its latest state; None if it has neither."""
    if task.error:
        return task.error
    reasons = (event.payload.get("reason") for event in reversed(task.events) if "state" in event.payload)
    return next(reasons, None)


@routes.post("/api/conversations/{id}/pause")
async def pause_conversation(id: ConversationId, access: Writer, body: StopBody | None = None) -> Success:
    """Ask the run of a conversation to stop at its next step. Does nothing if none is running."""
    await access.store.get(id)
    await access.services.runs.pause(id, by=access.caller.name, reason=body.reason if body else "")
    return Success()


@routes.post("/api/conversations/{id}/interrupt")
async def interrupt_conversation(
    id: ConversationId, access: Writer, body: StopBody | None = None, wait: bool = False
) -> Success:
    """Stop the run of a conversation now, and kill its tools. Does nothing if none is running.

    With `wait`, the response is sent when the run has ended.
    """
    await access.store.get(id)
    reason = body.reason if body else ""
    await access.services.runs.interrupt(
        id, by=access.caller.name, reason=reason, wait_seconds=INTERRUPT_WAIT_SECONDS if wait else 0
    )
    return Success()


@routes.post("/api/conversations/{id}/condense")
async def condense_conversation(id: ConversationId, access: Writer, body: CondenseBody | None = None) -> Success:
    """Replace the messages that the model has seen by a summary in later requests."""
    async with open_to_ask(access, id) as conversation:
        if not await conversation.condense(keep="" if body is None else body.keep):
            raise Conflict(
                "there is nothing to condense", hint="the conversation is short", details={"condensed": False}
            )
    return Success()


@routes.post("/api/conversations/{id}/ask_agent")
async def ask_agent(id: ConversationId, body: QuestionBody, access: Asker) -> Text:
    """Ask the model a question about a conversation, without changing its log."""
    async with open_to_ask(access, id) as conversation:
        return Text(response=await conversation.ask(body.question))


@routes.post("/api/conversations/{id}/confirmation_policy")
async def set_confirmation_policy(id: ConversationId, body: PolicyBody, access: Writer) -> Success:
    """Change which calls wait for a person. A policy that asks less often needs the scope `approve`."""
    await access.store.get(id)
    await replace_policy(access, id, parse_openhands_policy(body.policy))
    return Success()


@routes.post("/api/conversations/{id}/security_analyzer")
async def set_security_analyzer(id: ConversationId, body: AnalyzerBody, access: Writer) -> Success:
    """Change the analyzer that rates the risk of calls. Replacing or removing one needs the scope `approve`."""
    await access.store.get(id)
    posted = body.security_analyzer
    await replace_analyzer(access, id, None if posted is None else parse_openhands_analyzer(posted))
    return Success()


@routes.post("/api/conversations/{id}/secrets")
async def set_secrets(id: ConversationId, body: SecretsBody, access: Writer) -> Success:
    """Store secrets for the scripts of a conversation. They are encrypted, and no response contains them."""
    record = await access.store.get(id)
    values = read_secrets(body.secrets)
    state = await access.services.states.state_of(record)
    await access.services.sealed.put(record, state.policies, values)
    return Success()


@routes.post("/api/conversations/{id}/limits")
async def set_limits(id: ConversationId, body: LimitsForm, access: Writer) -> Success:
    """Change the limits of the next runs. Wider limits need the scope `approve`."""
    await replace_limits(access, id, body.limits())
    return Success()


@routes.post("/api/conversations/{id}/model")
async def set_model(id: ConversationId, body: ModelBody, access: Writer) -> Success:
    """Change the model of the next steps. Its key is encrypted, and no response contains it."""
    await change_model(access, id, body.model, body.base_url, body.api_key)
    return Success()


_UNSUPPORTED = {
    "navigate": "fork with from_event_id",
    "load_plugin": "skills are installed by the operator",
    "switch_llm": "POST {id}/model",
    "switch_profile": "POST {id}/model",
    "switch_acp_model": "POST {id}/model",
    "goal": "send a message",
    "goal/stop": "POST {id}/interrupt",
    "goal/resume": "POST {id}/run",
    "children": "POST /api/tasks",
    "runtime/reprovision": "there is nothing to provision",
}


@routes.post("/api/conversations/{id}/{action:path}", include_in_schema=False)
async def refuse_action(id: ConversationId, action: str, access: Reader) -> Success:
    """Report that an action of OpenHands' API is not supported, and what to use instead."""
    from starlette.exceptions import HTTPException

    await access.store.get(id)
    if action not in _UNSUPPORTED:
        raise HTTPException(404, "there is no such route")
    raise NotSupported(f"{action} is not supported", hint=_UNSUPPORTED[action])
