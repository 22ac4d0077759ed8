"""The input of an AG-UI run, as the messages of a chat and the answers to interrupts.

Source: the AG-UI protocol 1.0, https://docs.ag-ui.com/spec/1.0.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple, cast
from uuid import UUID, uuid5

from ag_ui.core import (
    AssistantMessage,
    DataSource,
    DeveloperMessage,
    ImagePart,
    ResumeEntry,
    RunAgentInput,
    SystemMessage,
    TextPart,
    UserMessage,
)
from pydantic import ValidationError

from bough.conversation import State
from bough.conversation.run.waiting.decision import CallDecision, choose_answer, choose_approved, find_wait_kind
from bough.errors import InvalidInput
from bough.events.model import ContentPart
from bough.events.model import TextPart as RecordedText
from bough.server.openai.messages import ChatImage, ChatMessage, ChatPart, Dialogue
from bough.types import JsonObject

MAX_MESSAGES = 10_000
CANCELLED_REASON = "cancelled"

APPROVAL_SCHEMA: JsonObject = {
    "type": "object",
    "properties": {
        "approved": {"type": "boolean"},
        "editedArgs": {"type": "object", "description": "Arguments that replace those of the call."},
        "reason": {"type": "string", "description": "The agent is told why a call was rejected."},
    },
    "required": ["approved"],
}
"""What answers an interrupt that asks for an approval."""


class ThreadMessage(NamedTuple):
    """A message of a thread, without instructions and tools.

    Attributes:
        event: The id that the event of the message has if the conversation contains it.
    """

    event: UUID | None
    message: ChatMessage


def parse_input(body: JsonObject) -> RunAgentInput:
    """Return the input of a run.

    Raises:
        InvalidInput: A field is invalid, or asks for what an agent cannot do; the message names it.
    """
    try:
        run = RunAgentInput.model_validate(body)
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False, include_context=False)[0]
        field = ".".join(map(str, first["loc"])) or "the body"
        raise InvalidInput(f"{field}: {first['msg']}", hint="send a RunAgentInput of AG-UI 1.0") from None
    for name, value in (("threadId", run.thread_id), ("runId", run.run_id)):
        if not 0 < len(value) <= 200:
            raise InvalidInput(f"{name}: 1 to 200 characters", hint="a UUID is enough")
    if len(run.messages) > MAX_MESSAGES:
        raise InvalidInput(f"messages: at most {MAX_MESSAGES}", hint="start a new thread")
    # Refused instead of ignored: the agent would answer as if the front end had no tools.
    if run.tools:
        raise InvalidInput("tools: the agent runs its tools itself", hint="register them in config.yaml")
    return run


def list_ignored(run: RunAgentInput) -> list[str]:
    """Return the names of the fields of an input that have no effect, sorted."""
    return ["forwardedProps"] if run.forwarded_props else []


def read_instructions(run: RunAgentInput) -> str:
    """Return the texts of all system messages."""
    messages = [message for message in run.messages if isinstance(message, SystemMessage | DeveloperMessage)]
    return "\n\n".join(message.content for message in messages)


def read_messages(run: RunAgentInput, thread: UUID) -> list[ThreadMessage]:
    """Return the messages of the user and of the agent. Results of tools and reasoning are in the log already.

    Raises:
        InvalidInput: A message has other content than texts and images.
    """
    messages: list[ThreadMessage] = []
    for message in run.messages:
        if isinstance(message, UserMessage):
            # The thread is part of the id, so that a client cannot take the id of an event elsewhere.
            event = uuid5(thread, message.id)
            messages.append(ThreadMessage(event, ChatMessage(role="user", content=_read_content(message))))
        elif isinstance(message, AssistantMessage) and (message.content or message.tool_calls):
            chat = ChatMessage(role="assistant", content=message.content or "")
            messages.append(ThreadMessage(_parse_event(message.id), chat))
    return messages


def read_new_message(messages: Sequence[ThreadMessage], run: RunAgentInput) -> tuple[ContentPart, ...]:
    """Return the content of the message that a conversation without these messages is sent.

    The context of the front end, such as the page that a person looks at, is part of it.

    Raises:
        InvalidInput: The last message is not of the user; or an image is not base64.
    """
    if not messages or messages[-1].message.role != "user":
        raise InvalidInput("messages: the last one must be of the role user", hint="add the message to answer")
    parts = Dialogue([message.message for message in messages]).parts_from(0)
    lines = [f"{context.description}: {context.value}" for context in run.context or ()]
    return (*parts, RecordedText(text="\n".join(["", "", "Context:", *lines]))) if lines else parts


def make_decision(state: State, entries: Sequence[ResumeEntry], *, by: str, max_chars: int | None) -> CallDecision:
    """Return the decision on all waiting calls. A call is approved only by the payload `approved: true`.

    Raises:
        InvalidInput: A waiting call has no answer, or a call that does not wait has one; or a payload is invalid.
    """
    answered = [entry.interrupt_id for entry in entries]
    # AG-UI demands all answers at once, so that the agent never continues with a call that nobody has decided.
    if sorted(answered) != sorted(state.waiting):
        waiting = ", ".join(state.waiting) or "none"
        raise InvalidInput("resume: every open interrupt needs one answer, and no other", hint=f"open: {waiting}")
    decisions = [_decide(state, entry, by=by, max_chars=max_chars) for entry in entries]
    return CallDecision(
        approve=tuple(call for decision in decisions for call in decision.approve),
        reject=tuple(call for decision in decisions for call in decision.reject),
        reason="; ".join(dict.fromkeys(decision.reason for decision in decisions if decision.reason)),
        arguments={call: value for decision in decisions for call, value in decision.arguments.items()},
        answers={call: value for decision in decisions for call, value in decision.answers.items()},
        shown=max_chars,
        by=by,
    )


def _decide(state: State, entry: ResumeEntry, *, by: str, max_chars: int | None) -> CallDecision:
    call, payload = entry.interrupt_id, entry.payload
    if entry.status == "cancelled":
        return CallDecision(reject=(call,), reason=CANCELLED_REASON, by=by)
    if find_wait_kind(state, call) != "approval":
        return choose_answer(state, call, as_object(payload).get("answer", payload), by=by, max_chars=max_chars)
    fields = as_object(payload)
    approved, reason = fields.get("approved"), fields.get("reason") or ""
    if not isinstance(approved, bool) or not isinstance(reason, str):
        raise InvalidInput(
            "resume: the payload does not match the responseSchema", hint='for example {"approved": true}'
        )
    if not approved:
        return CallDecision(reject=(call,), reason=reason, by=by)
    return choose_approved(state, [call], by=by, reason=reason, arguments=fields.get("editedArgs"))


def as_object(value: object) -> JsonObject:
    """Return a value of a client if it is an object; an empty object otherwise."""
    return cast("JsonObject", value) if isinstance(value, dict) else {}


def _parse_event(id: str) -> UUID | None:
    try:
        return UUID(id)
    except ValueError:
        return None


def _read_content(message: UserMessage) -> str | list[ChatPart]:
    if isinstance(message.content, str):
        return message.content
    parts: list[ChatPart] = []
    for part in message.content:
        if isinstance(part, TextPart):
            parts.append(ChatPart(type="text", text=part.text))
        elif isinstance(part, ImagePart) and isinstance(part.source, DataSource):
            url = f"data:{part.source.mime_type};base64,{part.source.value}"
            parts.append(ChatPart(type="image_url", image_url=ChatImage(url=url)))
        else:
            raise InvalidInput("messages: only texts, and images as data, are supported", hint="send the image as data")
    return parts
