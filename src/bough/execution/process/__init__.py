"""Processes of a run: as whom and with what they start, their limits, their network, their end and their result."""
