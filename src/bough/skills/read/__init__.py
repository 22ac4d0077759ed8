"""Skill files as data: lenient and strict reading, and what is repaired."""
