"""Bytes that events refer to by digest."""
