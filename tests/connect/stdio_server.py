"""A real MCP server on stdin and stdout, for the tests of skills that bring one."""

import os
from pathlib import Path

from mcp.server import MCPServer
from mcp.server.mcpserver import Context

server = MCPServer("run_directory")


@server.tool()
def measure(plank: str) -> str:
    """Measure a plank."""
    return f"{plank} is {len(plank)} long"


@server.tool()
def environment() -> list[str]:
    """Names of the environment."""
    return sorted(os.environ)


@server.tool()
def list_planks(count: int) -> str:
    """List planks, ten characters each."""
    return "".join(f"plank{number:04d}\n" for number in range(count))


@server.tool()
def show_key(context: Context) -> str:
    """Show the key of the call."""
    return str(dict(context.request_context.meta or {}).get("bough/effect-key"))


@server.tool()
def fail() -> str:
    """Fail."""
    raise RuntimeError("the saw is blunt")


if __name__ == "__main__":
    Path(os.environ["PID_FILE"]).write_text(str(os.getpid()))
    server.run(transport="stdio")
