"""Agents of a server as A2A agents: their cards, and a handler that answers from the broker and the log alone."""
