"""One session: answers prompts, shows the steps of their runs, and asks the person for decisions."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from contextlib import aclosing, suppress
from typing import Any, Final, Literal, TypeAlias, cast

from acp import schema
from pydantic import BaseModel

from bough.conversation import AsyncConversation
from bough.conversation.agent import resolve_spec_model
from bough.conversation.log.listeners import Update
from bough.errors import BoughError, Conflict, InvalidInput
from bough.events.model import TextPart, Usage, UserMessage
from bough.server.acp.content import Block, read_prompt
from bough.server.acp.editor import Editor
from bough.server.acp.updates import convert_step, describe_call
from bough.server.live.steps import MessageStep, RespondedStep, StepReader
from bough.types import Json, JsonObject

StopReason: TypeAlias = Literal["end_turn", "max_tokens", "max_turn_requests", "refusal", "cancelled"]

_ACTOR: Final = "acp"
_ALLOW: Final = "allow"
_REJECT: Final = "reject"
_OPTIONS: Final = [
    {"optionId": _ALLOW, "name": "Allow", "kind": "allow_once"},
    {"optionId": _REJECT, "name": "Reject", "kind": "reject_once"},
]
_STOP_REASONS: Final[dict[str, StopReason]] = {"length": "max_tokens", "content_filter": "refusal"}


class EditorSession:
    """An open conversation of a client.

    Attributes:
        calls: Ids of the calls that were sent to the client.
    """

    def __init__(self, conversation: AsyncConversation, editor: Editor) -> None:
        self.conversation = conversation
        self.calls: set[str] = set()
        self._editor = editor
        self._turn: asyncio.Task[str] | None = None
        self._is_cancelled = False

    @property
    def id(self) -> str:
        """The id of the session, which is that of the conversation."""
        return str(self.conversation.id)

    @property
    def is_busy(self) -> bool:
        """Whether a prompt is being answered."""
        return self._turn is not None

    async def update(self, update: BaseModel) -> None:
        """Send an update to the client. Does nothing once the client has gone."""
        with suppress(ConnectionError):
            await self._editor.update(self.id, update)

    async def prompt(self, blocks: Sequence[Block]) -> schema.PromptResponse:
        """Send a prompt and run the agent until it has answered, the person cancels, or it asks a question as text.

        Raises:
            Conflict: Another prompt of the session is being answered.
            Other errors: See `AsyncConversation.send_message` and `.run`.
        """
        if self._turn is not None:
            raise Conflict("the session is answering a prompt", hint="wait for the answer, or send `session/cancel`")
        before, self._is_cancelled = self.conversation.usage, False
        self._turn = asyncio.create_task(self._answer(read_prompt(blocks, self.conversation.workspace)))
        try:
            message = await self._turn
        except asyncio.CancelledError:
            if not self._is_cancelled:
                await self._stop()  # the connection ends
                raise
            return self._respond("cancelled", "", before)
        finally:
            self._turn = None
        await self.report_usage()
        return self._respond(self._find_stop_reason(), message, before)

    def cancel(self) -> None:
        """Interrupt the answer to a prompt. A second call does nothing: the end of a run must not be interrupted."""
        if self._turn is not None and not self._is_cancelled:
            self._is_cancelled = True
            self._turn.cancel()

    async def report_usage(self) -> None:
        """Send how much of the model's context the latest request used, and the cost so far."""
        size = self._find_context_size()
        if size:
            cost = self.conversation.usage.cost_usd
            amount = None if cost is None else schema.Cost(amount=cost, currency="USD")
            used = self.conversation.state.request_tokens
            await self.update(schema.UsageUpdate(session_update="usage_update", used=used, size=size, cost=amount))

    async def aclose(self) -> None:
        """Interrupt the run, and close the conversation."""
        await self._stop()
        await self.conversation.aclose()

    async def _stop(self) -> None:
        turn = self._turn
        self.cancel()
        if turn is not None:
            await asyncio.wait({turn})

    async def _answer(self, message: UserMessage) -> str:
        """Answer a message, and return the id of its event; empty if it was the answer to a question."""
        head = self.conversation.state.head
        id = await self._send(message)
        while True:
            await self._watch(head)
            head = self.conversation.state.head
            if self.conversation.status != "waiting_for_confirmation" or not await self._decide():
                return id

    async def _send(self, message: UserMessage) -> str:
        """Send a message; the only question that waits is answered with its text."""
        conversation = self.conversation
        waiting = conversation.state.waiting
        if len(waiting) == 1 and all(isinstance(part, TextPart) for part in message.content):
            ((call, question),) = waiting.items()
            if question.get("kind") == "question":
                await conversation.answer(call, message.plain.strip(), by=_ACTOR)
                return ""
        return str(await conversation.send_message(message))

    async def _watch(self, start: int) -> None:
        """Show the decisions recorded from seq `start` on, then run the conversation and show its steps."""
        conversation, steps = self.conversation, StepReader()
        async for stored in conversation.store.read(conversation.id, start, conversation.state.head):
            await self._show(steps, stored)
        async with aclosing(conversation.run_stream()) as updates:
            async for update in updates:
                await self._show(steps, update)

    async def _show(self, steps: StepReader, update: Update) -> None:
        for step in steps.read(update):
            if isinstance(step, RespondedStep):
                await self.report_usage()
            elif not isinstance(step, MessageStep):  # the client shows what it has sent
                for session_update in convert_step(step, self.conversation.workspace, self.calls):
                    await self._editor.update(self.id, session_update)

    async def _decide(self) -> bool:
        """Ask the person about each waiting call, and record the decision at once. False if a call stays undecided."""
        for id, call in dict(self.conversation.state.waiting).items():
            kind = str(call.get("kind") or "approval")
            try:
                if kind == "approval":
                    is_decided = await self._ask_permission(id, call)
                else:
                    is_decided = kind == "question" and await self._ask_question(id, call)
            except Conflict:
                continue  # another client has decided
            if not is_decided:
                return False
        return True

    async def _ask_permission(self, id: str, call: JsonObject) -> bool:
        fields = describe_call(str(call.get("tool")), _read_object(call, "arguments"), self.conversation.workspace)
        reviewed = {name: call[name] for name in ("risk", "reason") if call.get(name)}
        update = schema.ToolCallUpdate(tool_call_id=id, status="pending", **fields)
        request = {
            "sessionId": self.id,
            "toolCall": update.model_dump(mode="json", by_alias=True, exclude_none=True),
            "options": _OPTIONS,
            "_meta": {"bough": reviewed},
        }
        answer = await self._editor.ask("session_request_permission", request)
        outcome = _read_object(answer, "outcome")
        if outcome.get("outcome") != "selected":
            return False
        if outcome.get("optionId") == _ALLOW:
            await self.conversation.approve(id, by=_ACTOR, arguments=_read_edited(answer))
        else:  # an unknown option allows nothing
            await self.conversation.reject(id, by=_ACTOR)
        return True

    async def _ask_question(self, id: str, call: JsonObject) -> bool:
        """Ask a question with a form; without one, as a text that the next prompt answers."""
        request = _read_object(call, "request")
        question, choices = str(request.get("question") or ""), request.get("choices")
        if not self._editor.shows_forms:
            lines = [question, *(f"- {choice}" for choice in choices or ())]
            content = schema.TextContentBlock(type="text", text="\n".join(lines))
            await self.update(schema.AgentMessageChunk(session_update="agent_message_chunk", content=content))
            return False
        field: JsonObject = {"type": "string", "title": "Answer"} | ({"enum": choices} if choices else {})
        form: JsonObject = {"type": "object", "properties": {"answer": field}, "required": ["answer"]}
        fields: JsonObject = {"sessionId": self.id, "toolCallId": id, "mode": "form"}
        answer = await self._editor.ask("elicitation_create", {**fields, "message": question, "requestedSchema": form})
        value: Json = _read_object(answer, "content").get("answer")
        if answer.get("action") != "accept" or value is None:
            return False
        await self.conversation.answer(id, value, by=_ACTOR)
        return True

    def _find_stop_reason(self) -> StopReason:
        state = self.conversation.state
        if state.limit is not None:
            return "max_turn_requests"
        return _STOP_REASONS.get(state.finish_reason, "end_turn")

    def _respond(self, reason: StopReason, message: str, before: Usage) -> schema.PromptResponse:
        state, usage = self.conversation.state, self.conversation.usage
        ours: JsonObject = {"status": state.status, "head": state.head}
        ours |= {name: value for name, value in (("message", message), ("limit", state.limit)) if value}
        spent = {
            name: getattr(usage, name) - getattr(before, name)
            for name in ("input_tokens", "output_tokens", "cache_read_tokens", "cache_write_tokens")
        }
        return schema.PromptResponse(
            stop_reason=reason,
            usage=schema.Usage(
                input_tokens=spent["input_tokens"],
                output_tokens=spent["output_tokens"],
                total_tokens=spent["input_tokens"] + spent["output_tokens"],
                cached_read_tokens=spent["cache_read_tokens"],
                cached_write_tokens=spent["cache_write_tokens"],
            ),
            field_meta={"bough": ours},
        )

    def _find_context_size(self) -> int | None:
        try:
            resolved, _ = resolve_spec_model(self.conversation.agent, self.conversation.settings)
        except BoughError:  # a model that cannot be used here has no known context
            return None
        return resolved.profile.get("context_window")


def _read_object(value: JsonObject, name: str) -> JsonObject:
    field = value.get(name)
    return cast("JsonObject", field) if isinstance(field, dict) else {}


def _read_edited(answer: JsonObject) -> JsonObject | None:
    """Return the arguments with which the person replaced those of the call; None if they are unchanged.

    Raises:
        InvalidInput: They are not an object.
    """
    ours = _read_object(_read_object(answer, "_meta"), "bough")
    arguments: Any = ours.get("arguments")
    if arguments is not None and not isinstance(arguments, dict):
        raise InvalidInput("bough.arguments must be an object", hint='for example {"path": "a"}')
    return cast("JsonObject | None", arguments)
