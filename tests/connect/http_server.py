"""A real MCP server over streamable HTTP, for the tests of agents that use one."""

import sys

from mcp.server import MCPServer
from mcp.server.mcpserver import Context

server = MCPServer("web")


@server.tool()
def authorization(ctx: Context) -> str:
    """What the request says of who asks."""
    return ctx.headers.get("authorization", "") if ctx.headers else ""


if __name__ == "__main__":
    server.run(transport="streamable-http", host="127.0.0.1", port=int(sys.argv[1]))
