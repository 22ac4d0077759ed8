"""Parsing skills: lenient and strict reading, repairs, and the files in a skill's folder."""
