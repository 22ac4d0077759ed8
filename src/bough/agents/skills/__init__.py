"""Skills of an agent: their tools, and how they enter a conversation."""
