"""Sandboxes that are kept: an interpreter forked for each run, and sessions that keep their state."""
