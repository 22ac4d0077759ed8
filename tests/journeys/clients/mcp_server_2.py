"""A server of tools with `mcp` 2.x: over stdio, or over HTTP at the port of its argument."""

import sys

from mcp.server.mcpserver import Context, MCPServer
from mcp.server.mcpserver.exceptions import ToolError

server = MCPServer("planks")


@server.tool()
def measure(plank: str) -> str:
    """Measure a plank."""
    return f"{plank} is {len(plank)} long"


@server.tool()
def count(planks: list[str]) -> dict[str, int]:
    """Count planks by their length."""
    return {plank: len(plank) for plank in planks}


@server.tool()
async def saw(plank: str, ctx: Context) -> str:
    """Saw a plank."""
    await ctx.report_progress(1, 2)
    raise ToolError(f"the saw is too blunt for {plank}")


@server.tool()
def authorization(ctx: Context) -> str:
    """Return the token of the request."""
    return ctx.headers["authorization"]


if sys.argv[1:]:
    server.run("streamable-http", host="127.0.0.1", port=int(sys.argv[1]))
else:
    server.run("stdio")
