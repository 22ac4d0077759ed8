"""One agent step with everything on, against the same agent in bare PydanticAI plus a durable append."""

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
from harness import Figure, in_turns_async, seconds_async


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
            conversation = await AsyncConversation.create(spec, workspace=folder, store=store, settings=settings)
            await conversation.send_message("go")
            await conversation.run()

        async def floor() -> None:
            async def drain(_: Any, events: Any) -> None:
                async for _event in events:
                    pass

            await bare.run("go", usage_limits=UsageLimits(request_limit=None), event_stream_handler=drain)
            for _ in range(steps):
                await store.append(scratch.id, [PauseRequested()])

        values, floors = await in_turns_async(lambda: seconds_async(ours), lambda: seconds_async(floor), rounds=5)
        to_ms = 1000 / steps
        Figure.of(
            f"agent step of {steps}", [v * to_ms for v in values], [f * to_ms for f in floors], unit="ms"
        ).report()
        await store.aclose()


async def main() -> None:
    """Steps of short and long runs: the cost of one may not grow with their number."""
    for steps in (10, 100, 300):
        await measure(steps)


if __name__ == "__main__":
    asyncio.run(main())
