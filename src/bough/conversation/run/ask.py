"""Asks a model about a conversation without adding to it: the log records neither the question nor the answer."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from pydantic_ai import Agent
from pydantic_ai.exceptions import AgentRunError, UserError
from pydantic_ai.messages import ModelMessage, ModelRequest, ToolReturnPart, UserPromptPart
from pydantic_ai.models import Model

from bough.agents.models.failure import NotOpenAIFormat, model_error
from bough.agents.usage import read_usage
from bough.conversation.log.state import NOTHING_USED, add_usage
from bough.events.model import Usage
from bough.settings import Price

_SUMMARIZE = (
    "Summarize the conversation above for the assistant that will continue with it. Keep: what the user wants, what "
    "was decided and why, files and results that matter with their exact names and numbers, what failed, what is left "
    "to do. Leave out everything else. Answer with the summary alone."
)


async def ask(
    model: Model, messages: Sequence[ModelMessage], question: str, *, instructions: str, prices: Mapping[str, Price]
) -> tuple[str, Usage]:
    """Return the model's answer to `question` after `messages`, and its usage. The model gets no tools.

    Args:
        prices: `Settings.prices`.

    Raises:
        ModelError: The model failed.
    """
    agent = Agent(model, instructions=instructions or None)
    try:
        result = await agent.run(question, message_history=_close_calls(messages))
    except (AgentRunError, UserError, NotOpenAIFormat) as error:
        raise model_error(error, model=model) from error
    usage = NOTHING_USED
    for message in result.new_messages():
        if message.kind == "response":
            usage = add_usage(usage, read_usage(message, prices))
    return result.output, usage


async def summarize(
    model: Model, messages: Sequence[ModelMessage], *, prices: Mapping[str, Price], keep: str = ""
) -> tuple[str, Usage]:
    """Return a summary of `messages`, and the usage of making it.

    Args:
        prices: `Settings.prices`.
        keep: What the summary must keep.

    Raises:
        ModelError: The model failed.
    """
    question = f"{_SUMMARIZE}\nThe user asks to keep in particular: {keep}" if keep else _SUMMARIZE
    return await ask(model, messages, question, instructions="", prices=prices)


def _close_calls(messages: Sequence[ModelMessage]) -> list[ModelMessage]:
    """Return the messages as a history for another prompt: from the first request on, with results for all calls."""
    history = list(messages)
    while history and history[0].kind == "response":
        history.pop(0)
    if not history:
        return [ModelRequest(parts=[UserPromptPart("(no messages yet)")])]
    last_message = history[-1]
    if last_message.kind == "response" and last_message.tool_calls:
        parts = [
            ToolReturnPart(tool_name=call.tool_name, content="still running", tool_call_id=call.tool_call_id)
            for call in last_message.tool_calls
        ]
        history.append(ModelRequest(parts=parts))
    return history
