"""Conversations of an agent server under the same names as local ones."""
