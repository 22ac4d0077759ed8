"""Conversations as tools and resources of an MCP server."""
