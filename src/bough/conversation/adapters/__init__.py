"""Adapters: conversations with the interfaces and formats of other projects."""
