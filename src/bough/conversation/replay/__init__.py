"""Replays: recorded conversations are run again and compared with their record."""
