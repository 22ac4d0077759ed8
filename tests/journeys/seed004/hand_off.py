"""A hand-off: a router names the specialist, and the program gives the conversation to that one."""

import asyncio
from typing import Literal

from pydantic import BaseModel

from bough.agents import get_agent, run_agent
from bough.testing import ScriptedModel, tool_call


class Route(BaseModel):
    category: Literal["billing", "technical"]


router = get_agent(
    model=ScriptedModel(
        [tool_call("final_result", category="billing"), tool_call("final_result", category="technical")]
    ),
    output_type=Route,
    system_prompt="Classify the question.",
)
specialists = {
    "billing": get_agent(model=ScriptedModel(["The invoice is sent again."]), system_prompt="You answer on invoices."),
    "technical": get_agent(model=ScriptedModel(["Restart the router."]), system_prompt="You answer on devices."),
}


async def main() -> None:
    for question in ("Where is my invoice?", "My network is down."):
        routed, _ = await run_agent(router, question)
        category = routed.result.output.category
        answered, _ = await run_agent(specialists[category], question)
        print(category, answered.result.output, sep=": ")


asyncio.run(main())
