"""Conversations under the interfaces and formats of other projects."""
