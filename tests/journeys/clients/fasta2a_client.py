"""A client program with `fasta2a` 0.6 or 2.1: prints what it got as JSON. Arguments: address of the agent, its key."""

import asyncio
import json
import sys
from importlib.metadata import version
from uuid import uuid4

import httpx
from fasta2a.client import A2AClient
from fasta2a.schema import CancelTaskRequest, CancelTaskResponse, Message, a2a_request_ta, agent_card_ta
from pydantic import TypeAdapter

IS_2 = version("fasta2a").startswith("2.")


def message_to(text, task=None):
    part = {"text": text} if IS_2 else {"kind": "text", "text": text}
    message = Message(role="user", parts=[part], message_id=str(uuid4()))
    if not IS_2:
        message["kind"] = "message"
    if task is not None:
        message |= {"task_id": task["id"], "context_id": task["context_id"]}
    return message


async def send(client, text, task=None, *, is_blocking=True):
    configuration = {"accepted_output_modes": ["text/plain"], "blocking": is_blocking}
    response = await client.send_message(message_to(text, task), configuration=configuration)
    return response["result"]["task"] if IS_2 else response["result"]


async def read(client, id):
    return (await client.get_task(id))["result"]


async def cancel(client, id):
    """Cancel a task by fasta2a's own request and response: its client has no method for it."""
    request = CancelTaskRequest(jsonrpc="2.0", id=1, method="tasks/cancel", params={"id": id})
    response = await client.http_client.post("/", content=a2a_request_ta.dump_json(request, by_alias=True))
    return TypeAdapter(CancelTaskResponse).validate_json(response.content)["result"]["status"]["state"]


def text_of(task):
    return "".join(part["text"] for artifact in task.get("artifacts", []) for part in artifact["parts"])


async def stream(client, text):
    results = [response["result"] async for response in client.stream_message(message_to(text))]
    chunks = [result["artifact_update"] for result in results if "artifact_update" in result]
    states = [result["status_update"]["status"]["state"] for result in results if "status_update" in result]
    return [results[0]["task"]["status"]["state"] != "", text_of({"artifacts": [chunks[-1]["artifact"]]}), states[-1]]


async def use(client):
    task = await send(client, "hello")
    question = await send(client, "write")
    answered = await send(client, "approve", question)
    running = await send(client, "hang", is_blocking=False)
    refused = await client.send_message(message_to("more", task))
    return {
        "sent": [task["status"]["state"], text_of(task), text_of(await read(client, task["id"]))],
        "asked": [question["status"]["state"], question["status"]["message"]["parts"][0]["text"]],
        "answered": [answered["id"] == question["id"], text_of(answered)],
        "running": (await read(client, running["id"]))["status"]["state"] in ("submitted", "working"),
        "cancelled": await cancel(client, running["id"]),
        "streamed": await stream(client, "stream") if IS_2 else None,
        "errors": [
            (await client.get_task(str(uuid4())))["error"],
            refused["error"]["code"],
        ],
    }


async def main(url, key):
    headers = {"Authorization": f"Bearer {key}"} if key else {}
    async with httpx.AsyncClient(headers=headers, timeout=60, trust_env=False) as http:
        agent, name = url, None
        if IS_2 and not key:  # it cannot read the security requirements of any card; 0.6 reads no card at all
            agent = agent_card_ta.validate_json((await http.get(f"{url}/.well-known/agent-card.json")).content)
            name = agent["name"]
        facts = await use(A2AClient(agent, http_client=http))
    print(json.dumps({"card": name, **facts}))


asyncio.run(main(*sys.argv[1:]))
