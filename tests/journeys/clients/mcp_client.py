"""A program that uses bough by MCP, with `mcp` 1.x or 2.x; prints what it got as JSON.

Arguments: a file that exists when the model was asked for the answer that never comes, then `stdio` and the command of
the server, or `http`, the address and the key.
"""

from __future__ import annotations

import asyncio
import json
import sys
from importlib.metadata import version
from pathlib import Path
from uuid import uuid4

if version("mcp").startswith("1."):
    from mcp_1 import HTTPError, ProtocolError, connect_http, connect_stdio
else:
    from mcp_2 import HTTPError, ProtocolError, connect_http, connect_stdio

POLL_SECONDS = 0.05


async def call(connection, tool, **arguments):
    is_error, result, text = await connection.call(tool, arguments)
    assert not is_error, text
    return result


async def use_conversations(connection):
    started = await call(connection, "start_conversation", message="first", title="A title", tags={"a": "b"})
    id = started["id"]
    again = await call(connection, "send_message", conversation=id, message="again")
    fork = await call(connection, "fork_conversation", conversation=id, at=started["head"], message="else", run=True)
    compared = await call(connection, "compare_conversations", a=id, b=fork["id"])
    page = await call(connection, "list_conversations", text="A title", limit=1)
    task = await call(connection, "delegate", agent="worker", prompt="do it")
    read_task = await call(connection, "get_task", task=task["task"])
    cancelled = await call(connection, "cancel_task", task=task["task"])
    return id, {
        "started": [started["status"], started["answer"]],
        "continued": again["answer"],
        "forked": [fork["answer"], fork["at"] == started["head"], compared["common"] == started["head"]],
        "listed": len(page["items"]),
        "delegated": [task["state"], task["result"], read_task == task, cancelled["state"]],
    }


async def decide(connection):
    waiting = await call(connection, "start_conversation", message="write two files")
    first = waiting["waiting"][0]
    reports = []

    async def report(progress, total, message):
        reports.append([progress, message])

    arguments = {"conversation": waiting["id"], "call": first["call"], "decision": "approve"}
    is_error, done, text = await connection.call("decide", arguments, report)
    assert not is_error, text
    second = done["waiting"][0]
    rejected = await call(
        connection, "decide", conversation=waiting["id"], call=second["call"], decision="reject", reason="not this one"
    )
    return {
        "waits": [waiting["status"], first["tool"], first["arguments"]["path"]],
        "decided": [done["status"], second["arguments"]["path"], rejected["status"], rejected["answer"]],
        "progress": reports,
    }


async def use_resources(connection, id):
    uri = f"bough://conversations/{id}"
    listed = await connection.list_resources()
    transcript = await connection.read(uri)
    events = [json.loads(line) for line in (await connection.read(f"{uri}/events")).splitlines()]
    async with connection.subscribe(uri) as next_update:
        await call(connection, "send_message", conversation=id, message="x")
        updated = await asyncio.wait_for(next_update(), 60)
    try:
        unknown = await connection.read(f"bough://conversations/{uuid4()}")
    except ProtocolError as error:
        unknown = str(error)
    return {
        "resources": [uri in listed, "bough://agents/default" in listed],
        "transcript": ["first" in transcript, "one" in transcript],
        "events": [event["seq"] for event in events] == list(range(len(events))),
        "updated": updated == uri,
        "unknown_resource": unknown.partition(":")[0],
    }


async def make_mistakes(connection):
    codes = []
    for tool, arguments in (
        ("send_message", {"conversation": str(uuid4()), "message": "x"}),
        ("send_message", {"conversation": "-", "message": "x"}),
        ("start_conversation", {"nonsense": 1}),
        ("nonsense", {}),
    ):
        is_error, _, text = await connection.call(tool, arguments)
        codes.append([is_error, text.partition(":")[0]])
    return {"mistakes": codes}


async def fail(connection):
    is_error, result, _ = await connection.call("start_conversation", {"message": "fail"})
    after = await call(connection, "send_message", conversation=result["id"], message="again")
    return {"failed": [is_error, "no such model" in result["error"]["reason"], after["answer"]]}


async def cancel(connection, asked):
    async def reached():
        while not asked.exists():
            await asyncio.sleep(POLL_SECONDS)

    before = {record["id"] for record in (await call(connection, "list_conversations"))["items"]}
    await connection.call_and_cancel("start_conversation", {"message": "take long"}, reached)
    (id,) = {record["id"] for record in (await call(connection, "list_conversations"))["items"]} - before
    while (status := await status_of(connection, id)) == "running":  # the server learns of it in its own time
        await asyncio.sleep(POLL_SECONDS)
    resumed = await call(connection, "run_conversation", conversation=id)
    return {"cancelled": status, "resumed": [resumed["status"], resumed["answer"]]}


async def status_of(connection, id):
    records = (await call(connection, "list_conversations"))["items"]
    return next(record["status"] for record in records if record["id"] == id)


def is_refusal(error):
    """Whether an error, or one of those that it groups, says that the key is refused."""
    if isinstance(error, BaseExceptionGroup):
        return any(is_refusal(part) for part in error.exceptions)
    return isinstance(error, HTTPError | ProtocolError) and ("401" in str(error) or "error response" in str(error))


async def use_wrong_key(url, key):
    try:
        async with connect_http(url, key + "x") as connection:
            await connection.list_tools()
    except BaseException as error:
        return {"wrong_key": is_refusal(error) or repr(error)}
    return {"wrong_key": "accepted"}


async def main(asked, transport, *server):
    async with (connect_stdio if transport == "stdio" else connect_http)(*server) as connection:
        facts = {"tools": sorted(await connection.list_tools())}
        id, used = await use_conversations(connection)
        facts |= used
        facts |= await decide(connection)
        facts |= await use_resources(connection, id)
        facts |= await make_mistakes(connection)
        facts |= await fail(connection)
        facts |= await cancel(connection, Path(asked))
    return facts | (await use_wrong_key(*server) if transport == "http" else {})


print(json.dumps(asyncio.run(main(*sys.argv[1:]))))
