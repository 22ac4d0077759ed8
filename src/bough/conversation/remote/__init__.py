"""Conversations on an agent server, with the interface of local ones."""
