"""Prints the share of files that are right."""

# pyright: basic
import json
import pathlib


def refuse(name):
    """Refuse what JSON does not have."""
    raise ValueError(name)


EXPECTED = {
    "bom.json": {"name": "bom", "size": 1},
    "comments.json": {"name": "comments", "url": "http://x/y"},
    "nan.json": {"name": "nan", "values": [1, None, 3]},
    "open.json": {"name": "open", "list": [1, 2, {"deep": True}]},
    "quotes.json": {"name": "quotes", "text": "it's fine"},
    "trailing.json": {"name": "trailing", "list": [1, 2, 3]},
    "unquoted.json": {"name": "unquoted", "nested": {"key": 1}},
}
right = 0
for name, data in EXPECTED.items():
    try:
        text = pathlib.Path("/app/fixed", name).read_bytes().decode("ascii")
        right += json.loads(text, parse_constant=refuse) == data
    except (OSError, ValueError):
        pass
print(right / len(EXPECTED))
