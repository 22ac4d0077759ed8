"""The agent server: a thin translator from REST, SSE and WebSocket to conversations, tasks and the store."""
