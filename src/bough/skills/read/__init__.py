"""Parsing skills: lenient and strict reading, repairs, and the files beside the instructions."""
