"""Prints the share of names that are right; 0 where two are the same or some are missing."""

# pyright: basic
import csv
import os
import re

taken, expected = set(), []
with open(os.path.join(os.path.dirname(__file__), "names.txt")) as source:
    for old in source.read().splitlines():
        stem, extension = os.path.splitext(old)
        stem = re.sub(r"[^a-z0-9]+", "-", stem.lower()).strip("-")
        new, number = stem + extension.lower(), 1
        while new in taken:
            number += 1
            new = f"{stem}-{number}{extension.lower()}"
        taken.add(new)
        expected.append((old, new))
try:
    with open("/app/plan.csv", newline="") as source:
        rows = [(row["old"], row["new"]) for row in csv.DictReader(source)]
except (OSError, KeyError, ValueError):
    rows = []
if len(rows) == len(expected) == len({new for _, new in rows}):
    print(sum(a == b for a, b in zip(rows, expected, strict=True)) / len(expected))
else:
    print(0)
