"""Rule files that tools wrote, as recorded in conversations that begin later in the same workspace."""

from __future__ import annotations

from collections.abc import Collection

from bough.events.model import Event, RulesChanged


def inherit_changed_rules(digests: Collection[str]) -> list[Event]:
    """Return the events by which a new conversation does not follow rule files that tools of another one wrote.

    Args:
        digests: sha256 of each file, hexadecimal; of the other conversation's latest state, since the new one finds the
            files as they are now. Empty: there are no events.
    """
    return [RulesChanged(paths=(), hashes=tuple(sorted(digests)))] if digests else []
