"""One agent step with everything on, against the same agent in bare PydanticAI plus durable appends.

There are two floors, both in the same process and in turns. The strict one is bare PydanticAI plus one append a step:
a hook that only looks at a call needs nothing durable first, so one append is enough. A hook that may act runs only
after its subject is durable. Its fair floor has the three appends that this needs: the response before the hook, the
call before the tool, and the result before the next hook.

A run also starts and ends: a conversation is created, a message sent, a lease taken and given back, a status written.
So the cost of a further step, without those, is reported as well. The time that bough adds to PydanticAI's step is
reported for each length. It must not grow, while PydanticAI's own step grows with its history.
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
from harness import Figure, measure_seconds_async

ROUNDS = 5
LENGTHS = (10, 100, 300)


def make_model(steps: int) -> FunctionModel:
    """Return a model that calls the tool `steps - 1` times and then answers."""
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
    """Allow every call. This is a hook."""


def make_rules(*, outside: bool) -> dict[str, Any]:
    """Return a policy, and a hook before and after each tool."""
    kinds = (HookKind.PRE_TOOL_USE, HookKind.POST_TOOL_USE)
    hooks = HookSet(tuple(Hook(kind=kind, function=allow, outside=outside) for kind in kinds))
    return {"confirmation_policy": ConfirmRisky(confirm_unknown=False), "hooks": hooks}


RULES = make_rules(outside=False)


def double(n: int) -> int:
    """Double a number."""
    return 2 * n


class Sides:
    """A run of `steps` steps with bough, and its floors."""

    def __init__(self, steps: int, store: Any, folder: str) -> None:
        self.steps = steps
        self._store = store
        self._folder = folder
        self._settings = Settings.load(home=folder, env={}, cwd=Path(folder))
        self._bare = Agent(make_model(steps), tools=[double], instructions="Be brief.")

    async def run_with_bough(self, **given: Any) -> None:
        """Run it in a conversation of its own."""
        spec = AgentSpec(model=make_model(self.steps), tools=(double,), skills=(), system_prompt="Be brief.")
        conversation = await AsyncConversation.create(
            spec, workspace=self._folder, store=self._store, settings=self._settings, **given
        )
        await conversation.send_message("go")
        if (await conversation.run()).status != "finished":
            raise RuntimeError("the run did not come to its end")
        await conversation.aclose()

    async def run_bare(self) -> None:
        """Run it without bough, streaming as bough does."""

        async def drain(_: Any, events: Any) -> None:
            async for _event in events:
                pass

        await self._bare.run("go", usage_limits=UsageLimits(request_limit=None), event_stream_handler=drain)

    async def appends(self, each: int) -> None:
        """Append `each` events for every step, one after the other."""
        scratch = await self._store.create()
        for _ in range(self.steps * each):
            await self._store.append(scratch.id, [PauseRequested()])


Work = Callable[[], Awaitable[None]]


async def measure_in_turns(works: dict[str, Work]) -> dict[str, list[float]]:
    """Return the seconds of each work in `ROUNDS` rounds, in turns, after one that does not count."""
    taken: dict[str, list[float]] = {name: [] for name in works}
    for number in range(ROUNDS + 1):
        for name in works if number % 2 else reversed(works):
            taken[name].append(await measure_seconds_async(works[name]))
    return {name: seconds[1:] for name, seconds in taken.items()}


async def measure(steps: int, store: Any, folder: str) -> dict[str, float]:
    """Print what a step of a run of `steps` steps costs, and return the medians in ms a run."""
    sides = Sides(steps, store, folder)
    works: dict[str, Work] = {
        "bare": sides.run_bare,
        "one append": lambda: sides.appends(1),
        "three appends": lambda: sides.appends(3),
        "looking": lambda: sides.run_with_bough(**make_rules(outside=False)),
        "acting": lambda: sides.run_with_bough(**make_rules(outside=True)),
    }
    if steps == LENGTHS[-1]:
        condensed = {"condenser": KeepFirstCondenser(max_events=40), **make_rules(outside=False)}
        works["condensed"] = lambda: sides.run_with_bough(**condensed)
    taken = {name: [1000 * each for each in seconds] for name, seconds in (await measure_in_turns(works)).items()}

    def report_step(name: str, value: str, appends: str) -> None:
        floors = [(bare + more) / steps for bare, more in zip(taken["bare"], taken[appends], strict=True)]
        Figure.of(name, [each / steps for each in taken[value]], floors, unit="ms").report()

    report_step(f"agent step of {steps}, hooks that look, against bare + 1 append", "looking", "one append")
    report_step(f"agent step of {steps}, hooks that may act, against bare + 1 append", "acting", "one append")
    report_step(f"agent step of {steps}, hooks that may act, against bare + 3 appends", "acting", "three appends")
    if "condensed" in taken:
        report_step(
            f"agent step of {steps}, condensation, hooks, policy, against bare + 1 append", "condensed", "one append"
        )
    return {name: median(each) for name, each in taken.items()}


def report_parts(by_length: dict[int, dict[str, float]]) -> None:
    """Print which part of a step is PydanticAI's and which is bough's, and the cost of a further step."""
    for steps, taken in by_length.items():
        own = taken["looking"] - taken["bare"]
        report_part("agent step of {}: PydanticAI's part", steps, taken["bare"] / steps)
        report_part("agent step of {}: bough's part, appends included", steps, own / steps)
        report_part("agent step of {}: an append", steps, taken["one append"] / steps)
    for few, many in pairwise(by_length):
        further = {name: by_length[many][name] - by_length[few][name] for name in by_length[few]}
        value, floor = further["looking"], further["bare"] + further["one append"]
        name = f"a further agent step, {few} to {many}, against bare + 1 append"
        each = 1 / (many - few)
        Figure(name, round(value * each, 4), "ms", round(floor * each, 4), round(value / floor, 3), ROUNDS).report()


def report_part(name: str, steps: int, value: float) -> None:
    """Print a figure that is a part of another one."""
    Figure(name.format(steps), round(value, 4), "ms", None, None, ROUNDS).report()


async def main() -> None:
    """Measure steps of short and long runs: the time that bough adds to a step must not grow with their number."""
    with tempfile.TemporaryDirectory() as folder:
        store = await open_store(f"sqlite:///{folder}/log.db")
        report_parts({steps: await measure(steps, store, folder) for steps in LENGTHS})
        await store.aclose()


if __name__ == "__main__":
    asyncio.run(main())
