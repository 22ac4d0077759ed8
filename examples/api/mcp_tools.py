"""Tools of an MCP server: a program of this machine, started at the first step and ended with the conversation."""

import sys
from pathlib import Path

from bough import AgentSpec, Conversation, MCPClientConfig

SERVER = '''
from mcp.server.mcpserver import MCPServer

server = MCPServer("clock")

@server.tool()
def time_in(city: str) -> str:
    """Say what time it is in a city."""
    return f"12:30 in {city}"

server.run()
'''
path = Path("clock_server.py")
path.write_text(SERVER)

clock = MCPClientConfig(name="clock", command=sys.executable, args=(str(path.absolute()),), allowed_tools=("time_in",))

with Conversation(AgentSpec(model="openai:gpt-5", mcp_servers=[clock])) as conversation:
    conversation.send_message("What time is it in Lisbon?")
    print(conversation.run().output)
