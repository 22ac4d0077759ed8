"""An MCP server on stdin and stdout whose tools have the names in the JSON list of its first argument."""

import json
import sys

NAMES = json.loads(sys.argv[1])
SCHEMA = {"type": "object", "properties": {}}


def answer(message: dict) -> dict:
    """Return the result of a request."""
    if message["method"] == "initialize":
        version = message["params"]["protocolVersion"]
        info = {"name": "named", "version": "1"}
        return {"protocolVersion": version, "capabilities": {"tools": {}}, "serverInfo": info}
    if message["method"] == "tools/list":
        return {"tools": [{"name": name, "description": "d", "inputSchema": SCHEMA} for name in NAMES]}
    text = f"{sys.argv[2]} ran {NAMES.index(message['params']['name'])}"
    return {"content": [{"type": "text", "text": text}]}


for line in sys.stdin:
    request = json.loads(line)
    if "id" in request:
        known = request["method"] in ("initialize", "tools/list", "tools/call")
        outcome = {"result": answer(request)} if known else {"error": {"code": -32601, "message": "unknown"}}
        print(json.dumps({"jsonrpc": "2.0", "id": request["id"], **outcome}), flush=True)
