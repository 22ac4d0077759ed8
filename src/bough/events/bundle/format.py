"""The name and version of bundles, and what is said of a file that is none."""

from __future__ import annotations

from bough.errors import InvalidInput

FORMAT = "bough-bundle"
VERSION = 1


def no_bundle(why: str) -> InvalidInput:
    """Return the error of a file that is not a bundle."""
    return InvalidInput(f"not a valid bundle: {why}", hint="export it again with `bough conv export`")
