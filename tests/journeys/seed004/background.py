"""The result of a task in the background stands before the next prompt, without the coordinator asking for it."""

import asyncio

from bough.orchestrator import AgentSpec, OrchestratorAgent
from bough.tasks import TaskState
from bough.testing import ScriptedModel, tool_call

finished = asyncio.Event()


async def finish() -> str:
    """End the work."""
    finished.set()
    return "ended"


async def main() -> None:
    analyst = AgentSpec(name="analyst", model=ScriptedModel([tool_call("finish"), "Revenue grew."]), tools=[finish])
    model = ScriptedModel(
        [
            tool_call("submit_task", agent_name="analyst", prompt="Compare"),
            "Started.",
            lambda request: "Known." if "Revenue grew." in str(request.messages[-1]) else str(request.messages[-1]),
        ]
    )
    spec = AgentSpec(name="coordinator", model=model, sub_agents=[analyst])
    async with OrchestratorAgent(spec) as orchestrator:
        print((await orchestrator.run("Start it")).output)
        await finished.wait()
        for task in await orchestrator.broker.store.list_by_state(TaskState.RUNNING):
            await orchestrator.broker.wait(task.id)
        print((await orchestrator.run("And now?")).output)


asyncio.run(main())
