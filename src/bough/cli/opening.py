"""Opening a conversation that exists, with what the command line can give again."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from bough.cli.rule_options import RuleOptions
from bough.errors import InvalidInput
from bough.settings import Settings

if TYPE_CHECKING:
    from bough.conversation import AsyncConversation


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
        project = _project_of(error, settings.home)
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


def _project_of(error: InvalidInput, home: Path) -> Path | None:
    """Return the project that brought the hooks which are missing; None where another file did."""
    from bough.guard.hook_file import PROJECT_FILES

    for hook in error.details.get("hooks", ()):
        for name in PROJECT_FILES:
            source = str(hook.get("source", ""))
            if source.endswith(f"/{name}") and Path(source) != home / "hooks.json":
                return Path(source.removesuffix(f"/{name}"))
    return None
