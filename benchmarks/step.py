"""One agent step with everything on, against the same agent in bare PydanticAI plus one, or three, durable appends."""

from __future__ import annotations

import asyncio
import tempfile
from pathlib import Path
from typing import Any

from pydantic_ai import Agent
from pydantic_ai.messages import ModelMessage, ModelResponse, TextPart, ToolCallPart
from pydantic_ai.models.function import AgentInfo, DeltaToolCall, FunctionModel
from pydantic_ai.usage import UsageLimits

from bough import AgentSpec, AsyncConversation, Settings, open_store
from bough.events.model import PauseRequested
from bough.guard import ConfirmRisky, Hook, HookKind, HookSet
from bough.types import JsonObject
from harness import Figure, in_turns_async, seconds_async

APPENDS = 3
"""What the order of writing costs at least: the response, the call before it runs, its result."""


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


RULES: Any = {"confirmation_policy": ConfirmRisky(confirm_unknown=False)}
RULES["hooks"] = HookSet(
    (Hook(kind=HookKind.PRE_TOOL_USE, function=allow), Hook(kind=HookKind.POST_TOOL_USE, function=allow))
)


def double(n: int) -> int:
    """Double a number."""
    return 2 * n


async def measure(steps: int) -> None:
    """Print what a step of a run of `steps` steps costs."""
    with tempfile.TemporaryDirectory() as folder:
        settings = Settings.load(home=folder, env={}, cwd=Path(folder))
        store = await open_store(f"sqlite:///{folder}/log.db")
        bare = Agent(model(steps), tools=[double], instructions="Be brief.")
        scratch = await store.create()

        async def ours() -> None:
            spec = AgentSpec(model=model(steps), tools=(double,), skills=(), system_prompt="Be brief.")
            conversation = await AsyncConversation.create(
                spec, workspace=folder, store=store, settings=settings, **RULES
            )
            await conversation.send_message("go")
            if (await conversation.run()).status != "finished":
                raise RuntimeError("the run did not come to its end")

        async def floor(appends: int) -> None:
            async def drain(_: Any, events: Any) -> None:
                async for _event in events:
                    pass

            await bare.run("go", usage_limits=UsageLimits(request_limit=None), event_stream_handler=drain)
            for _ in range(steps * appends):
                await store.append(scratch.id, [PauseRequested()])

        for appends in (1, APPENDS):
            values, floors = await in_turns_async(
                lambda: seconds_async(ours),
                lambda appends=appends: seconds_async(lambda: floor(appends)),
                rounds=5,
            )
            each = 1000 / steps
            name = f"agent step of {steps}, against {appends} append{'s' if appends > 1 else ''}"
            Figure.of(name, [v * each for v in values], [f * each for f in floors], unit="ms").report()
        await store.aclose()


async def main() -> None:
    """Steps of short and long runs: the cost of one may not grow with their number."""
    for steps in (10, 100, 300):
        await measure(steps)


if __name__ == "__main__":
    asyncio.run(main())
