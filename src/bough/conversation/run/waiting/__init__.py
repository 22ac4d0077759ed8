"""Calls that wait for somebody: why they wait, what is decided of them, and how that is written down."""
