"""One agent step with everything on, against the same agent in bare PydanticAI plus durable appends.

Two floors, both in the same process and in turns. The strict one is bare PydanticAI plus one append a step: hooks that
only look at a call need nothing durable first, so a step can do with one. A hook that may act is not asked before what
it is asked about is durable; its fair floor has the three appends that this takes: the response before the hook, the
call before the tool, the result before the next hook.

A run also starts and ends: a conversation is created, a message sent, a lease taken and given back, a status written.
So the cost of a further step, apart from those, is told as well; and what bough adds to PydanticAI's step at each
length, which is what has to stay flat: PydanticAI's own step grows with its history.
"""

from __future__ import annotations

import asyncio
import tempfile
from collections.abc import Awaitable, Callable
from itertools import pairwise
from pathlib import Path
from statistics import median
from typing import Any

from pydantic_ai import Agent
from pydantic_ai.messages import ModelMessage, ModelResponse, TextPart, ToolCallPart
from pydantic_ai.models.function import AgentInfo, DeltaToolCall, FunctionModel
from pydantic_ai.usage import UsageLimits

from bough import AgentSpec, AsyncConversation, Settings, open_store
from bough.conversation.log.condenser import KeepFirstCondenser
from bough.events.model import PauseRequested
from bough.guard import ConfirmRisky, Hook, HookKind, HookSet
from bough.types import JsonObject
from harness import Figure, seconds_async

ROUNDS = 5
LENGTHS = (10, 100, 300)


def model(steps: int) -> FunctionModel:
    """A model that calls the tool `steps - 1` times and then answers."""
    asked = 0

    def call(_: list[ModelMessage], __: AgentInfo) -> ModelResponse:
        nonlocal asked
        asked += 1
        if asked == steps:
            asked = 0
            return ModelResponse(parts=[TextPart("done")])
        return ModelResponse(parts=[ToolCallPart("double", {"n": asked}, tool_call_id=f"c{asked}")])

    async def stream(messages: list[ModelMessage], info: AgentInfo) -> Any:
        part = call(messages, info).parts[0]
        if isinstance(part, TextPart):
            yield part.content
        else:
            yield {0: DeltaToolCall(part.tool_name, part.args_as_json_str(), tool_call_id=part.tool_call_id)}

    return FunctionModel(call, stream_function=stream)


async def allow(_: JsonObject) -> None:
    """A hook that has nothing against it."""


def rules(*, outside: bool) -> dict[str, Any]:
    """A policy, and a hook before and after each tool."""
    kinds = (HookKind.PRE_TOOL_USE, HookKind.POST_TOOL_USE)
    hooks = HookSet(tuple(Hook(kind=kind, function=allow, outside=outside) for kind in kinds))
    return {"confirmation_policy": ConfirmRisky(confirm_unknown=False), "hooks": hooks}


RULES = rules(outside=False)


def double(n: int) -> int:
    """Double a number."""
    return 2 * n


class Sides:
    """What is measured of a run of `steps` steps, and what it is measured against."""

    def __init__(self, steps: int, store: Any, folder: str) -> None:
        self.steps = steps
        self._store = store
        self._folder = folder
        self._settings = Settings.load(home=folder, env={}, cwd=Path(folder))
        self._bare = Agent(model(steps), tools=[double], instructions="Be brief.")

    async def ours(self, **given: Any) -> None:
        """Run it in a conversation of its own."""
        spec = AgentSpec(model=model(self.steps), tools=(double,), skills=(), system_prompt="Be brief.")
        conversation = await AsyncConversation.create(
            spec, workspace=self._folder, store=self._store, settings=self._settings, **given
        )
        await conversation.send_message("go")
        if (await conversation.run()).status != "finished":
            raise RuntimeError("the run did not come to its end")
        await conversation.aclose()

    async def bare(self) -> None:
        """Run it without bough, streaming as bough does."""

        async def drain(_: Any, events: Any) -> None:
            async for _event in events:
                pass

        await self._bare.run("go", usage_limits=UsageLimits(request_limit=None), event_stream_handler=drain)

    async def appends(self, each: int) -> None:
        """Append as often as the steps ask for, one after the other."""
        scratch = await self._store.create()
        for _ in range(self.steps * each):
            await self._store.append(scratch.id, [PauseRequested()])


Work = Callable[[], Awaitable[None]]


async def in_turns(works: dict[str, Work]) -> dict[str, list[float]]:
    """Return the seconds of each work in `ROUNDS` rounds, in turns, after one that does not count."""
    taken: dict[str, list[float]] = {name: [] for name in works}
    for number in range(ROUNDS + 1):
        for name in works if number % 2 else reversed(works):
            taken[name].append(await seconds_async(works[name]))
    return {name: seconds[1:] for name, seconds in taken.items()}


async def measure(steps: int, store: Any, folder: str) -> dict[str, float]:
    """Print what a step of a run of `steps` steps costs, and return the medians in ms a run."""
    sides = Sides(steps, store, folder)
    works: dict[str, Work] = {
        "bare": sides.bare,
        "one append": lambda: sides.appends(1),
        "three appends": lambda: sides.appends(3),
        "looking": lambda: sides.ours(**rules(outside=False)),
        "acting": lambda: sides.ours(**rules(outside=True)),
    }
    if steps == LENGTHS[-1]:
        condensed = {"condenser": KeepFirstCondenser(max_events=40), **rules(outside=False)}
        works["condensed"] = lambda: sides.ours(**condensed)
    taken = {name: [1000 * each for each in seconds] for name, seconds in (await in_turns(works)).items()}

    def step(name: str, value: str, appends: str) -> None:
        floors = [(bare + more) / steps for bare, more in zip(taken["bare"], taken[appends], strict=True)]
        Figure.of(name, [each / steps for each in taken[value]], floors, unit="ms").report()

    step(f"agent step of {steps}, hooks that look, against bare + 1 append", "looking", "one append")
    step(f"agent step of {steps}, hooks that may act, against bare + 1 append", "acting", "one append")
    step(f"agent step of {steps}, hooks that may act, against bare + 3 appends", "acting", "three appends")
    if "condensed" in taken:
        step(f"agent step of {steps}, condensation, hooks, policy, against bare + 1 append", "condensed", "one append")
    return {name: median(each) for name, each in taken.items()}


def tell_whose(by_length: dict[int, dict[str, float]]) -> None:
    """Print what of a step is PydanticAI's and what is bough's, and what a further step costs."""
    for steps, taken in by_length.items():
        own = taken["looking"] - taken["bare"]
        alone("agent step of {}: PydanticAI's part", steps, taken["bare"] / steps)
        alone("agent step of {}: bough's part, appends included", steps, own / steps)
        alone("agent step of {}: an append", steps, taken["one append"] / steps)
    for few, many in pairwise(by_length):
        further = {name: by_length[many][name] - by_length[few][name] for name in by_length[few]}
        value, floor = further["looking"], further["bare"] + further["one append"]
        name = f"a further agent step, {few} to {many}, against bare + 1 append"
        each = 1 / (many - few)
        Figure(name, round(value * each, 4), "ms", round(floor * each, 4), round(value / floor, 3), ROUNDS).report()


def alone(name: str, steps: int, value: float) -> None:
    """Print a figure that is a part of another one."""
    Figure(name.format(steps), round(value, 4), "ms", None, None, ROUNDS).report()


async def main() -> None:
    """Steps of short and long runs: what bough adds to one may not grow with their number."""
    with tempfile.TemporaryDirectory() as folder:
        store = await open_store(f"sqlite:///{folder}/log.db")
        tell_whose({steps: await measure(steps, store, folder) for steps in LENGTHS})
        await store.aclose()


if __name__ == "__main__":
    asyncio.run(main())
