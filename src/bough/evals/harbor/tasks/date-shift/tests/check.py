"""Prints the share of meetings that are right; 0 where names or order are not."""

# pyright: basic
import csv

EXPECTED = [
    ("board", "2025-03-01T04:30Z"),
    ("standup", "2027-03-29T00:15Z"),
    ("review", "2027-12-31T09:59Z"),
    ("sync", "2026-12-31T18:25Z"),
    ("retro", "2027-06-15T12:00Z"),
    ("planning", "2029-02-27T23:30Z"),
    ("demo", "2027-10-25T13:30Z"),
    ("offsite", "2028-02-29T05:30Z"),
]
try:
    with open("/app/shifted.csv", newline="") as source:
        rows = [(row["name"], row["utc"]) for row in csv.DictReader(source)]
except (OSError, KeyError, ValueError):
    rows = []
if [name for name, _ in rows] == [name for name, _ in EXPECTED]:
    print(sum(a == b for a, b in zip(rows, EXPECTED, strict=False)) / len(EXPECTED))
else:
    print(0)
