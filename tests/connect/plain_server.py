"""An MCP server on stdin and stdout that needs nothing but Python, as a skill would bring one into the sandbox."""

import json
import os
import sys
from pathlib import Path

TOOLS = ["look", "write", "die", "long"]


def call(name: str) -> str:
    """Do what the tool of this name does."""
    if name == "look":
        places = {place: os.path.exists(place) for place in ("/skill/SKILL.md", "/work", "/etc/shadow", "/root")}
        return json.dumps({**places, "cwd": os.getcwd(), "env": sorted(os.environ), "uid": os.getuid()})
    if name == "write":
        Path("/work/made.txt").write_text("made")
        return "written"
    if name == "long":
        return "x" * 1_000_000
    os._exit(1)


def answer(message: dict) -> dict:
    """Return the result of a request."""
    if message["method"] == "initialize":
        version = message["params"]["protocolVersion"]
        info = {"name": "plain", "version": "1"}
        return {"protocolVersion": version, "capabilities": {"tools": {}}, "serverInfo": info}
    if message["method"] == "tools/list":
        harmless = {"readOnlyHint": True}
        schema = {"type": "object", "properties": {}}
        return {
            "tools": [
                {"name": name, "description": "d" * 2000, "inputSchema": schema}
                | ({"annotations": harmless} if name == "look" else {})
                for name in TOOLS
            ]
        }
    return {"content": [{"type": "text", "text": call(message["params"]["name"])}]}


for line in sys.stdin:
    request = json.loads(line)
    if "id" in request:
        known = request["method"] in ("initialize", "tools/list", "tools/call")
        outcome = {"result": answer(request)} if known else {"error": {"code": -32601, "message": "unknown"}}
        print(json.dumps({"jsonrpc": "2.0", "id": request["id"], **outcome}), flush=True)
