"""A server of tools with `mcp` 1.x: over stdio, or over HTTP at the port of its argument."""

import sys

from mcp.server.fastmcp import Context, FastMCP
from mcp.server.fastmcp.exceptions import ToolError

port = int(sys.argv[1]) if sys.argv[1:] else 8000
server = FastMCP("planks", port=port)


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
    return ctx.request_context.request.headers["authorization"]


server.run("streamable-http" if sys.argv[1:] else "stdio")
