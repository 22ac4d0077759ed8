"""Bundles: a conversation as one signed file."""
