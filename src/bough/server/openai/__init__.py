"""OpenAI's chat completions over conversations: the model is an agent."""
