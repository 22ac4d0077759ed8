"""Runs in containers of an engine."""
