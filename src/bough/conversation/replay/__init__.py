"""Recorded conversations run again."""
