"""A program with bough's A2A client and an agent that has the peer as a tool: prints what it got as JSON."""

import asyncio
import json
import sys

from bough.connect import A2AClientConfig, A2AClientExtended
from bough.orchestrator import AgentSpec, OrchestratorAgent
from bough.testing import ScriptedModel, tool_call


def text_of(task):
    parts = [part for artifact in task.get("artifacts", []) for part in artifact["parts"]]
    parts = parts or task["status"].get("message", {}).get("parts", [])
    return "".join(part["text"] for part in parts)


async def cancel_when_polled(client):
    """Send a prompt that never ends, and cancel its task at the first look at it."""
    status, task = await client.send_and_observe("hang", is_cancelled=lambda: True)
    return [status.value, task["status"]["state"]]


async def ask(client):
    status, question = await client.send_and_observe("ask")
    answered, task = await client.send_and_observe("very", question["id"])
    return [status.value, text_of(question), answered.value, text_of(task)]


async def stream(client):
    events = [event async for event in client.stream("stream")]
    chunks = [event["artifactUpdate"] for event in events if "artifactUpdate" in event]
    return text_of({"artifacts": [chunk["artifact"] for chunk in chunks]})


async def use_as_tool(url, prompt):
    """Return what an agent says that has the peer as a tool, and what its model got from the peer."""
    model = ScriptedModel([tool_call("shouter", prompt=prompt), "It shouted."])
    peer = A2AClientExtended(A2AClientConfig(url=url, name="shouter", poll_interval=0.05))
    async with OrchestratorAgent(AgentSpec(name="coordinator", model=model, a2a_clients=[peer])) as orchestrator:
        output = (await orchestrator.run("Say hello")).output
    (answer,) = [part.content for part in model.asked[1].messages[-1].parts]
    return [output, {name: value for name, value in answer.items() if name != "task_id"}]


async def main(url, *features):
    client = A2AClientExtended(A2AClientConfig(url=url, name="shouter", poll_interval=0.05))
    card = await client.get_agent_card()
    status, task = await client.send_and_observe("hello")
    failed, failure = await client.send_and_observe("fail")
    facts = {
        "card": card["name"],
        "sent": [status.value, text_of(task), text_of(await client.poll(task["id"]))],
        "failed": [failed.value, failure["status"]["state"]],
        "tool": await use_as_tool(url, "hello"),
    }
    if "talked" in features:
        facts["talked"] = await use_as_tool(url, "talk")
    for name, use in (("cancelled", cancel_when_polled), ("asked", ask), ("streamed", stream)):
        if name in features:
            facts[name] = await use(client)
    await client.aclose()
    print(json.dumps(facts))


asyncio.run(main(*sys.argv[1:]))
