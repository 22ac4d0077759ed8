"""Sets of names, written as one text to keep long lists readable."""

from __future__ import annotations


def names(text: str) -> frozenset[str]:
    """Return the words of a text as a set."""
    return frozenset(text.split())
