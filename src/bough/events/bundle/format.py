"""The name and version of the bundle format, and the error for other files."""

from __future__ import annotations

from bough.errors import InvalidInput

FORMAT = "bough-bundle"
VERSION = 2
"""The newest readable version. Bundles without bytes of inputs are written as version 1, others as version 2."""


def invalid_bundle(reason: str) -> InvalidInput:
    """Return the error for a file that is not a bundle."""
    return InvalidInput(f"not a valid bundle: {reason}", hint="export it again with `bough conv export`")
