"""Prints 1 where unit, time and reason are right, else 0."""

# pyright: basic
import json
import pathlib

EXPECTED = {"unit": "index", "time": "07:17:30", "reason": "disk quota exceeded"}
try:
    print(int(json.loads(pathlib.Path("/app/first.json").read_text()) == EXPECTED))
except (OSError, ValueError):
    print(0)
