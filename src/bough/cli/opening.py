"""Opening a conversation that exists, with what the command line can give again."""

from __future__ import annotations

from typing import TYPE_CHECKING

from bough.cli.rules import RuleOptions
from bough.config import Settings
from bough.errors import InvalidInput

if TYPE_CHECKING:
    from bough.conversation import AsyncConversation


async def opened_conversation(name: str, settings: Settings, rules: RuleOptions) -> AsyncConversation:
    """Return the conversation; its recorded rules hold, and those that are given besides.

    Raises:
        NotFound: There is none of that name.
        InvalidInput: Its hooks are no longer in the home folder, or its agent has code that a log only names.
    """
    from bough.conversation import AsyncConversation

    try:
        return await AsyncConversation.open(name, settings=settings, **rules.given(settings))
    except InvalidInput as error:
        if "hooks" in error.details:
            file = settings.home / "hooks.json"
            raise InvalidInput(
                error.message, hint=f"put them back into {file}, or start a new conversation", details=error.details
            ) from error
        raise
