"""A coordinator with one specialist that answers in a form; its tokens count as the coordinator's."""

import asyncio

from pydantic import BaseModel, Field
from pydantic_ai import RunContext

from bough.agents import get_agent, run_agent
from bough.testing import ScriptedModel, tool_call


class Summary(BaseModel):
    summary: str = Field(description="2-3 sentence summary")


summarizer = get_agent(
    model=ScriptedModel([tool_call("final_result", summary="Revenue grew by a fifth.")]),
    output_type=Summary,
    system_prompt="You are a summarization specialist.",
)


async def get_summary(ctx: RunContext[None], document: str) -> str:
    """Delegate to summarizer sub-agent."""
    agent_run, _ = await run_agent(summarizer, f"Summarize:\n\n{document}")
    ctx.usage.incr(agent_run.result.usage())
    return agent_run.result.output.summary


coordinator = get_agent(
    model=ScriptedModel([tool_call("get_summary", document="Revenue: 100, 120"), "Summary: revenue grew by a fifth."]),
    tools=[get_summary],
    system_prompt="You are a document analysis coordinator.",
)


async def main() -> None:
    agent_run, nodes = await run_agent(coordinator, "Analyze the report")
    print(agent_run.result.output)
    print("requests", agent_run.result.usage().requests)
    print("nodes", len(nodes) > 0)


asyncio.run(main())
