"""The screens, forms and parts of the page; each module of this package defines one screen and its forms."""

from __future__ import annotations

from typing import Final

from bough.web.screen import Action, HtmlPart, WebScreen
from bough.web.screens import approvals, compare, conversations, event, files, fork, limits, new, timeline, tree

SCREENS: Final[tuple[WebScreen, ...]] = (
    conversations.SCREEN,
    new.SCREEN,
    timeline.SCREEN,
    event.SCREEN,
    fork.SCREEN,
    files.DIFF,
    files.RESTORE,
    limits.SCREEN,
    tree.SCREEN,
    compare.SCREEN,
    approvals.LIST,
    approvals.REVIEW,
)
"""Every screen of the page."""

ACTIONS: Final[tuple[Action, ...]] = (
    new.START,
    fork.FORK,
    approvals.DECIDE,
    compare.GRAFT,
    limits.CHANGE,
    *files.ACTIONS,
    *timeline.ACTIONS,
)
"""Every form of the page."""

PARTS: Final[tuple[HtmlPart, ...]] = (compare.CHOOSE, compare.CHOOSE_OTHER, *timeline.PARTS)
"""Every address from which a script gets HTML."""
