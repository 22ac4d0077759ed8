"""The screens, forms and parts of the page; each module of this package defines one screen and its forms."""

from __future__ import annotations

from typing import Final

from bough.web.screen import Action, HtmlPart, WebScreen
from bough.web.screens import conversations

SCREENS: Final[tuple[WebScreen, ...]] = (conversations.SCREEN,)
"""Every screen of the page."""

ACTIONS: Final[tuple[Action, ...]] = ()
"""Every form of the page."""

PARTS: Final[tuple[HtmlPart, ...]] = ()
"""Every address from which a script gets HTML."""
