"""Sets of names, written as one text: long lists stay readable in the source."""

from __future__ import annotations


def names(text: str) -> frozenset[str]:
    """Return the words of a text as a set."""
    return frozenset(text.split())
