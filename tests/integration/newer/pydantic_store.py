"""Programs of PydanticAI that keep their conversations in an event store; run with a version that has the interface.

`python pydantic_store.py NAME URL [ARGUMENT]` prints one JSON object. Run by `test_pydantic_store`.
"""

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import Awaitable, Callable
from random import Random
from typing import Any

from pydantic_ai import Agent, DeferredToolRequests, ToolDenied
from pydantic_ai.conversation import Conversation
from pydantic_ai.conversation_store import ConversationConflict, ConversationStore, InMemoryConversationStore
from pydantic_ai.exceptions import UserError
from pydantic_ai.messages import (
    BinaryContent,
    ModelMessage,
    ModelMessagesTypeAdapter,
    ModelRequest,
    ModelResponse,
    TextPart,
    ThinkingPart,
    ToolCallPart,
    ToolReturnPart,
    UserPromptPart,
)
from pydantic_ai.models.function import AgentInfo, FunctionModel
from pydantic_ai.models.test import TestModel

from bough.conversation.adapters.pydantic_messages import conversation_store
from bough.events import EventStore, open_store

IMAGE = BinaryContent(b"\x89PNG\x00\xff", media_type="image/png")


def answer(messages: list[ModelMessage], info: AgentInfo) -> ModelResponse:
    """Ask for the sum once, then say how many messages there were."""
    if any(part.part_kind == "tool-return" for part in messages[-1].parts):
        return ModelResponse(parts=[TextPart(f"I saw {len(messages)} messages.")])
    thinking = ThinkingPart("Grüße ✓", signature="c2ln", provider_name="function")
    return ModelResponse(
        parts=[thinking, ToolCallPart("add", {"a": 0.1, "b": 2**60}, tool_call_id=f"c{len(messages)}")]
    )


def agent_of() -> Agent[None, str]:
    agent = Agent(FunctionModel(answer), instructions="Be brief.", system_prompt="You add.")

    @agent.tool_plain
    def add(a: float, b: int) -> dict[str, Any]:
        return {"sum": a + b, "text": "lone \ufffd", "none": None}

    return agent


def seen(conversation: Conversation) -> str:
    return ModelMessagesTypeAdapter.dump_json(conversation.messages).decode()


async def talk(store: EventStore, name: str) -> dict[str, Any]:
    """Say something, save it, and say what was saved."""
    kept = conversation_store(store)
    result = await agent_of().run(["Add this:", IMAGE], conversation=Conversation(conversation_id=name))
    entries = await kept.save(result, scope="anna")
    return {"messages": seen(result.conversation), "entries": [entry.id for entry in entries]}


async def go_on(store: EventStore, name: str) -> dict[str, Any]:
    """Load in another process, continue with other models, save, fork and leave a branch."""
    kept = conversation_store(store)
    loaded = await kept.load(name, scope="anna")
    assert loaded is not None
    first, used = seen(loaded), loaded.usage.requests
    result = await agent_of().run("Again.", conversation=loaded)
    await kept.save(result)
    fork = await kept.fork(name, at=4)
    other = await Agent(TestModel(custom_output_text="on the fork")).run("And here?", conversation=fork)
    await kept.save(other)
    again = await kept.load(name)
    forked = await kept.load(fork.conversation_id)
    assert again is not None
    assert forked is not None
    return {
        "first": first,
        "requests": [used, again.usage.requests],
        "whole": seen(again) == seen(result.conversation),
        "shared": seen(forked).startswith(first[:-1]),
        "output": other.output,
        "lengths": [len(again.messages), len(forked.messages)],
        "fork": fork.conversation_id,
        "scopes": [record.scope for record in await kept.list_conversations()],
    }


async def wait(store: EventStore, name: str) -> dict[str, Any]:
    """A run that waits for an approval is saved, and continues from what was loaded."""
    agent = Agent(TestModel(custom_output_text="done"), output_type=[str, DeferredToolRequests])
    agent.tool_plain(requires_approval=True)(drop)
    kept = conversation_store(store)
    paused = await agent.run("Drop it.", conversation=Conversation(conversation_id=name))
    await kept.save(paused)
    loaded = await kept.load(name)
    assert loaded is not None
    assert loaded.deferred_tool_requests == paused.output
    asked = loaded.deferred_tool_requests
    assert asked is not None
    denied = asked.build_results(approvals={call.tool_call_id: ToolDenied("no") for call in asked.approvals})
    ended = await agent.run(conversation=loaded, deferred_tool_results=denied)
    await kept.save(ended)
    again = await kept.load(name)
    assert again is not None
    return {"waited": len(asked.approvals), "output": ended.output, "waits": again.deferred_tool_requests is not None}


def drop(table: str) -> str:
    """Drop a table."""
    raise AssertionError("it was not approved")


async def compare(store: EventStore, seeds: str) -> dict[str, Any]:
    """Do the same at random with PydanticAI's own store and with ours, and hold every answer against the other."""
    done = 0
    for seed in range(*map(int, seeds.split("-"))):
        pair = Pair(InMemoryConversationStore(), conversation_store(store), Random(seed))
        for _ in range(40):
            await pair.step()
            done += 1
        await pair.empty()
    return {"steps": done, "left": len((await store.list()).items), "events": (await store.census()).events}


class Pair:
    """Two stores that are told the same."""

    def __init__(self, theirs: ConversationStore, ours: ConversationStore, random: Random) -> None:
        self.stores, self.random = (theirs, ours), random
        self.names = [f"{random.random()}/{n}" for n in range(4)]
        self.stale: dict[str, tuple[Conversation | None, ...]] = {}

    async def step(self) -> None:
        do = self.random.choice([self.save, self.save, self.save, self.rewrite, self.branch, self.back, self.fork])
        do = self.random.choices([do, self.delete, self.old, self.window, self.list], [12, 2, 2, 1, 1])[0]
        await do(self.random.choice(self.names))

    async def both(self, work: Callable[[int, ConversationStore], Awaitable[Any]]) -> Any:
        """Return what both said, the same."""
        said: list[Any] = []
        for side, store in enumerate(self.stores):
            try:
                said.append(await work(side, store))
            except UserError as error:
                said.append((type(error), str(error) if type(error) is ConversationConflict else ""))
        assert said[0] == said[1], said
        return said[0]

    async def save(self, name: str) -> None:
        messages, scope = self.messages(), "s" if name == self.names[0] else None
        loaded = [await store.load(name) or Conversation(conversation_id=name) for store in self.stores]
        for conversation in loaded:
            conversation.messages += messages
            conversation.usage.requests += 1
        await self.both(lambda side, store: told(store.save(loaded[side], scope=scope)))
        self.stale[name] = tuple(loaded)
        await self.same(name)

    async def rewrite(self, name: str) -> None:
        """Cut and change a history, so that what was stored is left as a branch."""
        keep, messages = self.random.random(), self.messages()
        loaded = [await store.load(name) for store in self.stores]
        for conversation in loaded:
            if conversation is not None:
                conversation.messages[int(len(conversation.messages) * keep) :] = messages
        if all(loaded):
            await self.both(lambda side, store: told(store.save(loaded[side])))
        await self.same(name)

    async def branch(self, name: str) -> None:
        at = self.random.randrange(12)
        revisions = [record and record.revision for record in [await store.read_record(name) for store in self.stores]]
        await self.both(lambda side, store: shown(store.branch(name, at=at, expected_revision=revisions[side])))
        await self.same(name)

    async def back(self, name: str) -> None:
        """Go back to a branch that was left, if there is one."""
        records = [await store.read_record(name) for store in self.stores]
        if all(record and record.branches for record in records):
            await self.both(
                lambda side, store: shown(
                    store.branch(name, from_entry=records[side].branches[0], expected_revision=records[side].revision)
                )
            )
        await self.same(name)

    async def fork(self, name: str) -> None:
        new, at = self.random.choice(self.names), self.random.choice([None, self.random.randrange(8)])
        # A name whose conversation is deleted but lives on in forks can be saved to, and not be given to a fork.
        if await self.stores[1].read_record(new) is None and await self.is_kept(new):
            return
        await self.both(lambda side, store: shown(store.fork(name, at=at, new_conversation_id=new)))
        await self.same(new)

    async def is_kept(self, name: str) -> bool:
        return (await self.stores[1]._log._read_record(name))[1] is not None

    async def delete(self, name: str) -> None:
        await self.both(lambda side, store: store.delete(name))
        await self.same(name)

    async def old(self, name: str) -> None:
        """Save what was loaded before others saved."""
        if stale := self.stale.get(name):
            messages = self.messages()
            for conversation in stale:
                conversation.messages += messages
            await self.both(lambda side, store: told(store.save(stale[side])))
        await self.same(name)

    async def window(self, name: str) -> None:
        limit = self.random.randrange(4)
        await self.both(lambda side, store: shown(store.load(name, limit=limit)))

    async def list(self, name: str) -> None:
        scope, limit = self.random.choice([None, "s"]), self.random.choice([None, 2])
        await self.both(lambda side, store: listed(store, self.names, scope, limit))

    async def same(self, name: str) -> None:
        await self.both(lambda side, store: shown(store.load(name)))
        records = [await store.read_record(name) for store in self.stores]
        assert len({record and (record.usage.requests, len(record.branches), record.scope) for record in records}) == 1

    async def empty(self) -> None:
        """Delete everything, in any order: nothing may be left behind."""
        self.random.shuffle(self.names)
        for name in self.names:
            await self.delete(name)

    def messages(self) -> list[ModelMessage]:
        said = str(self.random.random())
        call = ToolCallPart("t", {"x": said}, tool_call_id=said)
        return [
            ModelRequest(parts=[UserPromptPart(said)]),
            ModelResponse(parts=[call]),
            ModelRequest(parts=[ToolReturnPart("t", {"y": [said, None, 1.5]}, tool_call_id=said)]),
        ][: self.random.randrange(4)]


async def told(saving: Awaitable[Any]) -> int:
    return len(await saving)


async def shown(loading: Awaitable[Any]) -> Any:
    loaded = await loading
    return loaded and (seen(loaded), loaded.conversation_id)


async def listed(store: ConversationStore, names: list[str], scope: str | None, limit: int | None) -> list[str]:
    return [record.conversation_id for record in await store.list_conversations(scope=scope, limit=limit)]


async def main(name: str, url: str, argument: str) -> None:
    store = await open_store(url)
    try:
        print(json.dumps(await {"talk": talk, "go_on": go_on, "wait": wait, "compare": compare}[name](store, argument)))
    finally:
        await store.aclose()


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
