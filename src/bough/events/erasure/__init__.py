"""Receipts of erased conversations, in a side table."""
