"""Finding the conversation of a chat, sending its new message, and following the run that answers it.

A request has the messages of its chat and usually no id. The messages up to an earlier answer identify the
conversation: their digest is stored with the key of the caller. A chat that continues from an earlier point is a fork
there. A chat without such an answer is a new conversation.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple
from uuid import UUID

from bough.conversation.run.waiting.decision import choose_rejected
from bough.errors import Conflict, InvalidInput, NotFound
from bough.events.model import UserMessage
from bough.events.record import ConversationRecord
from bough.events.side_tables import Tables
from bough.server.access import Access
from bough.server.auth.keys import SERVER
from bough.server.bodies.conversations import NewConversation
from bough.server.conversations.conversation import Start, open_conversation, say, start
from bough.server.conversations.deciding import decide
from bough.server.conversations.forking import ForkSpec, fork
from bough.server.conversations.policies import rules_from
from bough.server.openai.messages import ChatRequest, Dialogue
from bough.types import new_id

_NO_APPROVAL = "this client cannot give an approval"
FORK_REASON = "an earlier message of the chat was changed"
"""Recorded as the reason of a fork that continues a chat from an earlier message."""


class _Place(NamedTuple):
    """Where a chat goes on.

    Attributes:
        head: How many events of the conversation the chat contains.
        answered: How many messages of the chat these events are.
    """

    record: ConversationRecord
    head: int
    answered: int


@dataclass(frozen=True, kw_only=True)
class OpenChat:
    """A conversation whose run answers a chat.

    Attributes:
        after: The seq after which the events of the run begin.
    """

    id: UUID
    after: int
    agent: str
    dialogue: Dialogue


async def ask(access: Access, request: ChatRequest, conversation: UUID | None) -> OpenChat:
    """Send the new message of a chat, and start the run that answers it.

    Args:
        conversation: The conversation that the caller names; None finds it by the messages.

    Raises:
        InvalidInput: A field or a message asks for what an agent cannot do.
        NotFound: The agent or the conversation does not exist.
        Conflict: The conversation waits for a decision.
        LimitExceeded: The tenant has the maximum number of conversations or runs.
    """
    dialogue = request.dialogue()
    if request.model not in access.services.agents.names():
        try:
            access.services.agents.find_named(request.model)
        except InvalidInput as error:
            raise NotFound("model: no agent has that name", hint=error.hint) from None
    if conversation is None:
        place = await _find_place(access, request.model, dialogue)
    else:
        place = await _find_place_in(access, await access.store.get(conversation), request.model, dialogue)
    if place is None:
        message = UserMessage(content=dialogue.parts_from(0))
        record = await start_chat(access, request.model, message, request.instructions, id=new_id())
        return OpenChat(id=record.id, after=-1, agent=request.model, dialogue=dialogue)
    message = UserMessage(content=dialogue.parts_from(place.answered))
    # Otherwise the log would have two different continuations of one chat, one after the other.
    if await find_next_message(access, place.record, place.head) is None:
        try:
            after = await send_message(access, place.record, message)
            return OpenChat(id=place.record.id, after=after, agent=request.model, dialogue=dialogue)
        except Conflict:
            pass  # another request has continued the same conversation
    options = {"at": place.head, "reason": FORK_REASON}
    forked = await fork(access, place.record, ForkSpec(options=options))
    after = await send_message(access, forked.record, message)
    return OpenChat(id=forked.record.id, after=after, agent=request.model, dialogue=dialogue)


async def record_answer(access: Access, chat: OpenChat, answer: str, head: int) -> None:
    """Store the digest of a chat and its answer, so that the next request of the chat finds the conversation.

    Args:
        head: How many events the conversation has after the answer.
    """
    digest = chat.dialogue.digest_with(answer)

    def add(tables: Tables) -> None:
        tables.run(
            "server.add_answer", caller=access.caller.key or "", agent=chat.agent, digest=digest,
            cid=tables.number(chat.id), head=head, now=tables.now(),
        )  # fmt: skip

    await access.services.store.transaction((SERVER,), add)


async def refuse_waiting(access: Access, id: UUID) -> bool:
    """Reject the waiting calls of a conversation, so that its run continues. Returns whether a call was waiting."""
    # Read now: the calls began to wait after the request had read the conversation.
    record = await access.store.get(id)
    state = await access.services.states.state_of(record)
    if not state.waiting:
        return False
    decision = choose_rejected(state, (), by=access.caller.name, reason=_NO_APPROVAL)
    await decide(access, id, decision, run=True)
    return True


async def _find_place(access: Access, agent: str, dialogue: Dialogue) -> _Place | None:
    """Return where a chat goes on: after its latest answer that this key got from this agent; None without one."""
    # The latest answer first: the more messages a conversation shares with the chat, the fewer must be quoted.
    for answered, digest in dialogue.answers():
        for id, head in await _read_answers(access, agent, digest):
            try:
                return _Place(await access.store.get(id), head, answered)
            except NotFound:
                continue  # deleted
    return None


async def _find_place_in(access: Access, record: ConversationRecord, agent: str, dialogue: Dialogue) -> _Place:
    """Return where a chat goes on in the conversation that the caller names.

    A chat without answers goes on at the end. One whose answers are all unknown differs from the first message on.

    Raises:
        InvalidInput: The conversation has another agent.
        Conflict: The conversation waits for a decision.
    """
    state = await access.services.states.state_of(record)
    if state.agent.get("name") != access.services.agents.find_named(agent).name:
        raise InvalidInput("model: the conversation has another agent", hint=f"send model={state.agent.get('name')}")
    # A person may still want to decide on these calls, so they are not rejected as calls of this chat would be.
    if state.waiting:
        raise Conflict("the conversation waits for a decision", hint="decide on its calls, then send the message again")
    for answered, digest in dialogue.answers():
        heads = [head for id, head in await _read_answers(access, agent, digest) if id == record.id]
        if heads:
            return _Place(record, heads[0], answered)
    if not dialogue.answered:
        return _Place(record, record.head, 0)
    async for stored in access.store.read(record.id, kinds=("UserMessage",)):
        return _Place(record, stored.seq, 0)
    return _Place(record, record.head, 0)


async def _read_answers(access: Access, agent: str, digest: bytes) -> list[tuple[UUID, int]]:
    """Return the conversations in which the same messages were answered, and their heads then, the latest first."""

    def read(tables: Tables) -> list[tuple[UUID, int]]:
        rows = tables.run("server.answers", caller=access.caller.key or "", agent=agent, digest=digest)
        return [(UUID(bytes=bytes(id)), head) for id, head in rows]

    return await access.services.store.transaction((SERVER,), read, read_only=True, small=True)


async def find_next_message(access: Access, record: ConversationRecord, start: int) -> int | None:
    """Return the seq of the first message of a person or a program from `start` on; None if there is none."""
    async for stored in access.store.read(record.id, start, kinds=("UserMessage",)):
        # Messages of hooks, and of bough about changed arguments, are parts of a turn.
        if isinstance(stored.event, UserMessage) and stored.event.sender == "user":
            return stored.seq
    return None


async def send_message(access: Access, record: ConversationRecord, message: UserMessage) -> int:
    """Send a message and start a run; return the seq after which its events begin.

    Raises:
        Conflict: The log has got other events meanwhile.
    """
    # With the head that was read, so that of two requests at once only one continues the conversation.
    async with open_conversation(access, record) as conversation:
        await say(access, conversation, message, run=True, expected_head=record.head)
    return record.head - 1


async def start_chat(
    access: Access, agent: str, message: UserMessage, instructions: str, *, id: UUID
) -> ConversationRecord:
    """Start a conversation with a message and its run. Its prompt ends with the instructions of the client."""
    services = access.services
    spec = services.agents.agent_for(access.caller, agent)
    # Only here: the prompt is recorded, so that later requests cannot change it.
    if instructions:
        prompt = "\n\n".join(filter(None, (spec.prompt(), instructions)))
        spec = spec.model_copy(update={"system_prompt": prompt, "system_prompt_path": None})
    new = Start(
        id=id,
        agent=spec,
        workspace=services.workspaces.folder_for(access.caller, id, None),
        rules=rules_from(access, NewConversation()),
        message=message,
        run=True,
        about={"form": "ours"},
    )
    return await start(access, new)
