"""Rule files that tools wrote, as conversations hear of them that begin later in the same workspace."""

from __future__ import annotations

from collections.abc import Collection

from bough.events.model import Event, RulesChanged


def inherit_changed_rules(digests: Collection[str]) -> list[Event]:
    """Return what the log of a new conversation says of rule files that tools of another one wrote; often nothing.

    Args:
        digests: Of the other one, as it is now: the files are there, whatever was known at a cut.
    """
    return [RulesChanged(paths=(), hashes=tuple(sorted(digests)))] if digests else []
