"""What a skill provides at run time: scripts, MCP servers, tools."""
