"""A coordinator that writes the system prompts of its sub-agents while it runs."""

import asyncio

from pydantic_ai import RunContext

from bough.agents import get_agent, run_agent
from bough.testing import ScriptedModel, tool_call

specialists = ScriptedModel(
    [
        lambda request: f"[{request.messages[0].parts[0].content}] the market grows",
        lambda request: f"[{request.messages[0].parts[0].content}] costs fall",
    ]
)


async def run_sub_agent(ctx: RunContext[None], system_prompt: str, task: str) -> str:
    """Create and run a sub-agent with the given system prompt."""
    sub_agent = get_agent(model=specialists, system_prompt=system_prompt)
    agent_run, _ = await run_agent(sub_agent, task)
    ctx.usage.incr(agent_run.result.usage())
    print(agent_run.result.output)
    return agent_run.result.output


coordinator = get_agent(
    model=ScriptedModel(
        [
            tool_call("run_sub_agent", system_prompt="You are a market analyst.", task="Look at the market"),
            tool_call("run_sub_agent", system_prompt="You are an accountant.", task="Look at the costs"),
            "Enter the market.",
        ]
    ),
    tools=[run_sub_agent],
    system_prompt="Break problems down and delegate to specialized sub-agents.",
)


async def main() -> None:
    agent_run, _ = await run_agent(coordinator, "Should we enter the market?")
    print(agent_run.result.output)
    print("requests", agent_run.result.usage().requests)


asyncio.run(main())
