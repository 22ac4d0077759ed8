"""The name and version of bundles, and what is said of a file that is none."""

from __future__ import annotations

from bough.errors import InvalidInput

FORMAT = "bough-bundle"
VERSION = 2
"""The newest that is read; a bundle says the oldest one that has what it carries: 1 without bytes of inputs, else 2."""


def no_bundle(why: str) -> InvalidInput:
    """Return the error of a file that is not a bundle."""
    return InvalidInput(f"not a valid bundle: {why}", hint="export it again with `bough conv export`")
