"""What a skill brings at run time: scripts, resources, MCP servers, tools."""
