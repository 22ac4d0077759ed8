"""What a skill brings at run time: scripts, MCP servers, tools."""
