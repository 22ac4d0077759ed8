"""Finding the conversation of a thread, and sending it a message or the answers to its interrupts.

The id of a thread is that of its conversation, if it is a UUID. Messages are recognized by their ids: those of the
agent are the ids of events, and those of the user are derived from the client's. A thread that continues from an
earlier message is a fork there; the state that the client gets, and sends back, names the fork.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple
from uuid import UUID, uuid5

from ag_ui.core import RunAgentInput

from bough.agents.spec import AgentSpec
from bough.conversation import State
from bough.errors import Conflict, InvalidInput, NotFound
from bough.events.model import StateChanged, UserMessage
from bough.events.record import ConversationRecord
from bough.server.access import Access
from bough.server.agui.input import (
    ThreadMessage,
    as_object,
    make_decision,
    read_instructions,
    read_messages,
    read_new_message,
)
from bough.server.bounds.etag import BOUGH
from bough.server.conversations.conversation import find_max_result_chars
from bough.server.conversations.deciding import decide
from bough.server.conversations.forking import ForkSpec, fork
from bough.server.openai.answering import FORK_REASON, find_next_message, send_message, start_chat
from bough.types import new_id

STATE_KEY = "bough"
"""The key of our part of a thread's state. The rest is the front end's, and is sent back unchanged."""

_SEARCHED_MESSAGES = 100


@dataclass(frozen=True, kw_only=True)
class ThreadRun:
    """A run that answers a thread.

    Attributes:
        after: The seq after which the events of the run begin.
    """

    conversation: UUID
    after: int
    input: RunAgentInput


class _KnownMessage(NamedTuple):
    """The latest message of a thread that its conversation contains.

    Attributes:
        place: Its place among the messages.
    """

    place: int
    seq: int


async def begin_run(access: Access, agent: AgentSpec, run: RunAgentInput) -> ThreadRun:
    """Send what a thread has new, and start the run that answers it.

    Raises:
        InvalidInput: The input asks for what an agent cannot do.
        NotFound: The conversation does not exist.
        Conflict: The conversation waits for answers, or has another agent.
        PermissionDenied: Interrupts are answered with a key that may not approve calls.
        LimitExceeded: The tenant has the maximum number of conversations or runs.
    """
    thread = _find_thread_id(access, run)
    record = await _find_conversation(access, thread, run)
    messages = read_messages(run, thread)
    if record is None:
        if run.resume:
            raise NotFound("there is no such thread, so no interrupt is open", hint="send a message first")
        message = UserMessage(id=_require_event(messages), content=read_new_message(messages, run))
        record = await start_chat(access, agent.name, message, read_instructions(run), id=thread)
        return ThreadRun(conversation=record.id, after=-1, input=run)
    state = await access.services.states.state_of(record)
    if state.agent.get("name") != agent.name:
        raise Conflict("the thread has another agent", hint=f"run the agent {state.agent.get('name')}")
    if run.resume:
        return await _resume(access, record, state, run)
    if state.waiting:
        raise Conflict("the thread waits for answers", hint=f"send `resume` for: {', '.join(state.waiting)}")
    id, after = await _continue(access, record, messages, run)
    return ThreadRun(conversation=id, after=after, input=run)


async def _resume(access: Access, record: ConversationRecord, state: State, run: RunAgentInput) -> ThreadRun:
    access.caller.require("write", "approve")
    max_chars = await find_max_result_chars(access, record, state)
    decision = make_decision(state, run.resume or (), by=access.caller.name, max_chars=max_chars)
    await decide(access, record.id, decision, run=True)
    return ThreadRun(conversation=record.id, after=record.head - 1, input=run)


async def _continue(
    access: Access, record: ConversationRecord, messages: Sequence[ThreadMessage], run: RunAgentInput
) -> tuple[UUID, int]:
    """Send the messages that a conversation does not contain, or run it for its last message.

    Returns:
        The conversation or its fork, and the seq after which the events of the run begin.
    """
    latest = await _find_latest_recorded(access, record, messages)
    first_new = 0 if latest is None else latest.place + 1
    after = -1 if latest is None else latest.seq
    if latest is not None and first_new == len(messages) and messages[latest.place].message.role == "user":
        # A request that was repeated: the message is there, and nothing but its answer may be missing.
        if not await _has_response_after(access, record, latest.seq):
            if await access.services.runs.is_live(record.id):
                return record.id, await _find_start(access, record, latest.seq)
            await access.services.runs.start(access.caller, record.id)
            return record.id, record.head - 1
        message = UserMessage(id=new_id(), content=read_new_message(messages[latest.place :], run))
        return await _send_to_fork(access, record, latest.seq, message)
    content = read_new_message(messages[first_new:], run)
    message = UserMessage(id=_require_event(messages), content=content)
    next_seq = await find_next_message(access, record, after + 1)
    if next_seq is None:
        try:
            return record.id, await send_message(access, record, message)
        except Conflict:
            next_seq = record.head  # another request has continued the conversation, or its run has not ended yet
    return await _send_to_fork(access, record, next_seq, message)


async def _send_to_fork(access: Access, record: ConversationRecord, at: int, message: UserMessage) -> tuple[UUID, int]:
    forked = await fork(access, record, ForkSpec(options={"at": at, "reason": FORK_REASON}))
    return forked.record.id, await send_message(access, forked.record, message)


async def _find_latest_recorded(
    access: Access, record: ConversationRecord, messages: Sequence[ThreadMessage]
) -> _KnownMessage | None:
    """Return the latest of `messages` that the conversation has recorded. Looks up the newest 100 only."""
    for index in range(len(messages) - 1, max(len(messages) - 1 - _SEARCHED_MESSAGES, -1), -1):
        event = messages[index].event
        if event is None:
            continue
        try:
            _, seq = await access.store.locate(event, cid=record.id)
        except NotFound:
            continue
        return _KnownMessage(index, seq)
    return None


async def _has_response_after(access: Access, record: ConversationRecord, seq: int) -> bool:
    async for _ in access.store.read(record.id, seq, kinds=("ModelResponded",)):
        return True
    return False


async def _find_start(access: Access, record: ConversationRecord, seq: int) -> int:
    """Return the seq after which the events of the latest run for the message at `seq` begin.

    The end of an earlier run that failed is not the end of the latest one.
    """
    async for stored in access.store.read(record.id, seq + 1, kinds=("StateChanged",), reverse=True):
        if isinstance(stored.event, StateChanged) and stored.event.changes.get("status") == "running":
            return stored.seq - 1
    return seq


async def _find_conversation(access: Access, thread: UUID, run: RunAgentInput) -> ConversationRecord | None:
    """Return the conversation that the state names, else that of the thread; None if the thread is new.

    Raises:
        NotFound: The state names a conversation that does not exist, or is not of the thread's tree.
    """
    try:
        record = await access.store.get(thread)
    except NotFound:
        record = None
    branch_id = _read_named(run.state)
    if branch_id is None or branch_id == thread:
        return record
    branch = await access.store.get(branch_id)
    if record is None or branch.root != record.root:
        raise NotFound("state: the conversation is not of this thread", hint="send the state of the last run")
    return branch


def _read_named(state: object) -> UUID | None:
    text = as_object(as_object(state).get(STATE_KEY)).get("conversation")
    if text is None:
        return None
    try:
        return UUID(str(text))
    except ValueError:
        raise InvalidInput(
            f"state.{STATE_KEY}.conversation: not an id", hint="send the state of the last run"
        ) from None


def _find_thread_id(access: Access, run: RunAgentInput) -> UUID:
    """Return the id of a thread's conversation: the id of the thread, or one derived from it and the tenant."""
    try:
        return UUID(run.thread_id)
    except ValueError:
        return uuid5(BOUGH, f"{access.caller.tenant}\nagui\n{run.thread_id}")


def _require_event(messages: Sequence[ThreadMessage]) -> UUID:
    """Return the id of the event of the last message.

    Raises:
        InvalidInput: There is no message of the user.
    """
    last = messages[-1] if messages else None
    if last is None or last.event is None or last.message.role != "user":
        raise InvalidInput("messages: the last one must be of the role user", hint="add the message to answer")
    return last.event
