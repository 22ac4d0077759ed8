"""One run: step after step until the model has answered everything.

Every step starts from the log: the view is rendered, PydanticAI does one thing (ask the model, or run the tools of the
last response), the recorder writes it down. A resumed run is therefore nothing special, and a message that arrives in
the middle is seen at the next step.
"""

from __future__ import annotations

from pydantic_ai import Agent
from pydantic_ai.exceptions import AgentRunError, UserError
from pydantic_ai.messages import ModelRequest, RetryFeedbackPart, ToolReturnPart
from pydantic_ai.models import Model
from pydantic_ai.run import AgentRun
from pydantic_graph import End

from bough.agents.context import ToolContext
from bough.conversation.journal import Journal
from bough.conversation.recorder import Recorder
from bough.errors import BoughError, ModelError
from bough.events.model import ToolInterrupted, UserMessage

MAX_EMPTY_RESPONSES = 3
"""How often in a row a model may answer with nothing usable before the run ends in an error."""

REMINDER = "bough"
"""Sender of messages that remind the model to answer."""


async def run_to_end(agent: Agent[ToolContext, str], journal: Journal, deps: ToolContext) -> int:
    """Run until nothing is left to do and return how many steps it took.

    Raises:
        ModelError: The model failed, or answered nothing usable several times in a row.
        StoreError: An event could not be written.
    """
    await _close_lost_calls(journal)
    recorder = Recorder(journal)
    steps = empty = 0
    while journal.state.has_work:
        feedback = await _step(agent, journal, recorder, deps)
        steps += 1
        empty = empty + 1 if feedback else 0
        if empty >= MAX_EMPTY_RESPONSES:
            raise ModelError(
                f"the model gave no usable answer {empty} times in a row: {feedback}", hint="try another model"
            )
        if feedback:
            await journal.append(UserMessage.text(feedback, sender=REMINDER))
        await journal.catch_up()
    return steps


async def _close_lost_calls(journal: Journal) -> None:
    """Close the calls that had started when their run died; whether they had effects nobody knows."""
    lost = [call for call in journal.state.open_calls if call.started and not call.idempotent]
    if lost:
        await journal.append(
            *(ToolInterrupted(tool_call_id=call.id, tool=call.tool, reason="the run ended") for call in lost)
        )


async def _step(agent: Agent[ToolContext, str], journal: Journal, recorder: Recorder, deps: ToolContext) -> str | None:
    """Ask the model once and run the tools it calls, or run the open tools only. Return feedback it still needs."""
    try:
        async with agent.iter(
            message_history=journal.view.messages(), deps=deps, capabilities=[recorder], infer_name=False
        ) as run:
            request = await _until_next_request(run)
    except (AgentRunError, UserError) as error:
        raise ModelError(str(error), hint=_hint(agent.model, error)) from error
    if request is None:
        return None
    await recorder.record_unseen([part for part in request.parts if isinstance(part, ToolReturnPart)])
    feedback = [part.content for part in request.parts if isinstance(part, RetryFeedbackPart)]
    return "\n".join(str(text) for text in feedback) or None


async def _until_next_request(run: AgentRun[ToolContext, str]) -> ModelRequest | None:
    """Drive the graph up to the request that the next step will make itself; None at the end."""
    node = run.next_node
    acted = False
    while not isinstance(node, End):
        if Agent.is_model_request_node(node) and acted:
            return node.request
        acted = acted or Agent.is_call_tools_node(node)
        node = await run.next(node)
    return None


def _hint(model: object, error: Exception) -> str:
    name = model.model_name if isinstance(model, Model) else "the model"
    if isinstance(error, BoughError):
        return error.hint
    return f"check {name} and its key and address with `bough doctor`; the conversation can be resumed"
