"""The clients of other programs' protocols: MCP servers that skills bring."""
