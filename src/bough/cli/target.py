"""How the command line names a conversation, and a point in it: `ID`, `-`, `ID@SEQ`."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING
from uuid import UUID

from bough.errors import InvalidInput

if TYPE_CHECKING:
    from bough.cli.rule_options import RuleOptions
    from bough.conversation import AsyncConversation
    from bough.settings import Settings

LATEST = "-"


@dataclass(frozen=True)
class Target:
    """A conversation as typed.

    Attributes:
        name: An id, a unique start or end of one, or `-` for the most recent (`@SEQ` alone means that one too).
        at: How many of its events are meant, from the first; None for all.
    """

    name: str
    at: int | None = None

    @classmethod
    def parse(cls, text: str) -> Target:
        """Return what `ID` or `ID@SEQ` means.

        Raises:
            InvalidInput: There is no id, or SEQ is not a number from 0.
        """
        name, separator, seq = text.partition("@")
        if separator and not name:
            name = LATEST
        if not name:
            raise InvalidInput(f"not a conversation id: {text!r}", hint="give an id, or - for the most recent one")
        if not separator:
            return cls(name)
        if not (seq.isascii() and seq.isdigit()):
            raise InvalidInput(
                f"{seq!r} is not a position in a conversation", hint="expected a number, 0 or more, after @"
            )
        return cls(name, int(seq))


def short(cid: UUID) -> str:
    """Return the last 8 digits of an id, which are enough to name it."""
    return cid.hex[-8:]


async def open_conversation(name: str, settings: Settings, rules: RuleOptions) -> AsyncConversation:
    """Return the conversation; its recorded rules hold, and those that are given besides.

    Raises:
        NotFound: There is none of that name.
        InvalidInput: Its hooks are no longer there or no longer trusted, or its agent has code that a log only names.
    """
    from bough.conversation import AsyncConversation

    try:
        return await AsyncConversation.open(name, settings=settings, **rules.make_rules(settings))
    except InvalidInput as error:
        project = _find_hook_project(error, settings.home)
        if project is None:
            raise _add_hint(error, f"put them back into {settings.home / 'hooks.json'}") from error
    try:
        return await AsyncConversation.open(name, settings=settings, **rules.make_rules(settings, project))
    except InvalidInput as error:
        raise _add_hint(error, f"trust them with `bough skills trust` in {project}") from error


def _add_hint(error: InvalidInput, how: str) -> InvalidInput:
    if "hooks" not in error.details:
        return error
    return InvalidInput(error.message, hint=f"{how}, or start a new conversation", details=error.details)


def _find_hook_project(error: InvalidInput, home: Path) -> Path | None:
    """Return the project that brought the hooks which are missing; None where another file did."""
    from bough.guard.hook_file import PROJECT_FILES

    for hook in error.details.get("hooks", ()):
        for name in PROJECT_FILES:
            source = str(hook.get("source", ""))
            if source.endswith(f"/{name}") and Path(source) != home / "hooks.json":
                return Path(source.removesuffix(f"/{name}"))
    return None
