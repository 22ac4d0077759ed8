"""Names of conversations on the command line, and of positions in conversations: `ID`, `-`, `ID@SEQ`."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING
from uuid import UUID

from bough.errors import InvalidInput
from bough.events.record import ConversationFilter
from bough.settings import find_project

if TYPE_CHECKING:
    from bough.agents.delegation_protocol import Delegation
    from bough.agents.spec import AgentSpec
    from bough.cli.rule_options import RuleOptions
    from bough.conversation import AsyncConversation
    from bough.events import StoreAdmin
    from bough.events.record import ConversationRecord
    from bough.settings import Settings

LATEST = "-"


@dataclass(frozen=True)
class Target:
    """The name of a conversation and a position in it.

    Attributes:
        name: An id, a unique start or end of an id, or `-` for the latest conversation of the project.
        at: The number of events before the position; None for all events.
    """

    name: str
    at: int | None = None

    @classmethod
    def parse(cls, text: str) -> Target:
        """Return the target for `ID` or `ID@SEQ`; `@SEQ` alone means the same as `-@SEQ`.

        Raises:
            InvalidInput: The id is missing, or SEQ is not a number of 0 or more.
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

    @classmethod
    def parse_name(cls, text: str) -> str:
        """Return the name of a conversation for a command that does not take `ID@SEQ`.

        Raises:
            InvalidInput: The id is missing, or a position is given.
        """
        target = cls.parse(text)
        if target.at is not None:
            raise InvalidInput("this applies to the whole conversation", hint=f"leave @{target.at} out")
        return target.name

    def end(self, record: ConversationRecord) -> int:
        """Return the number of events before the position, or of all events if there is no position.

        Raises:
            InvalidInput: The conversation has fewer events.
        """
        if self.at is not None and self.at > record.head:
            raise InvalidInput(
                f"{short(record.id)} has {record.head} events, not {self.at}",
                hint=f"give a number from 0 to {record.head}",
            )
        return record.head if self.at is None else self.at


async def resolve(store: StoreAdmin, name: str) -> UUID:
    """Return the conversation that a name denotes. `-` is the latest of this project, or of all if it has none.

    Raises:
        NotFound: No conversation matches.
        InvalidInput: The name is invalid, or several match.
    """
    if name == LATEST:
        page = await store.list(ConversationFilter(folder=find_project()), limit=1)
        if page.items:
            return page.items[0].id
    return await store.resolve(name)


def short(id: UUID | str) -> str:
    """Return the last 8 digits of the id of a conversation or task; commands accept them as its name."""
    return str(id).replace("-", "")[-8:]


async def open_conversation(
    name: str, settings: Settings, rules: RuleOptions, broker: Delegation | None = None
) -> AsyncConversation:
    """Open a conversation with its recorded rules and the rules of the options.

    Args:
        broker: Runs its tasks.

    Raises:
        NotFound: No conversation has this name.
        InvalidInput: Hooks are missing or no longer trusted, or the agent needs code that the log only names.
    """
    from bough.conversation import AsyncConversation
    from bough.events.open import use_store

    if name == LATEST:
        async with use_store(settings.store, create=False, keep_copy=settings.copy_before_upgrade) as store:
            name = str(await resolve(store, name))
    try:
        return await AsyncConversation.open(name, settings=settings, broker=broker, **rules.make_rules(settings))
    except InvalidInput as error:
        project = _find_hook_project(error, settings.home)
        if project is None:
            raise _add_hint(error, f"put them back into {settings.home / 'hooks.json'}") from error
    # Only the log names the project, because the command may run in another folder; so its hooks are loaded now.
    try:
        return await AsyncConversation.open(
            name, settings=settings, broker=broker, **rules.make_rules(settings, project)
        )
    except InvalidInput as error:
        raise _add_hint(error, f"trust them with `bough skills trust` in {project}") from error


def find_new_address(agent: AgentSpec, model: str | None, base_url: str | None) -> str | None:
    """Return the address to use from now on instead of the recorded one; None if it stays.

    Args:
        model: The model that the user named; None for the agent's.
        base_url: `--base-url`; without it, BOUGH_BASE_URL counts. A file never moves a conversation elsewhere.
    """
    from bough.agents.models.resolve import takes_base_url

    address = base_url or os.environ.get("BOUGH_BASE_URL") or None
    if not takes_base_url(agent.model if model is None else model):
        if base_url is not None:
            raise InvalidInput(
                f"--base-url is for openai: models, and the model is {model or agent.model}",
                hint="name a model of that server: --model openai:NAME",
            )
        return None
    return None if address == agent.base_url else address


def describe_new_address(agent: AgentSpec, address: str) -> str:
    """Return what to say when requests are sent elsewhere: from where to where, and with which key."""
    key = "the key in OPENAI_API_KEY is sent there" if os.environ.get("OPENAI_API_KEY") else "no key is sent there"
    return f"requests now go to {address}, no longer to {agent.base_url or 'the provider'}; {key}"


async def change_model(conversation: AsyncConversation, model: str | None, base_url: str | None) -> list[str]:
    """Continue with another model or address, as the options say, and return what to warn about."""
    agent = conversation.agent
    address = find_new_address(agent, model, base_url)
    name = model if model is not None else agent.model
    if name is not None and (model is not None or address is not None):
        await conversation.set_model(name, base_url=address)
    return [] if address is None else [describe_new_address(agent, address)]


def _add_hint(error: InvalidInput, remedy: str) -> InvalidInput:
    """Return an error about missing hooks with a hint; return any other error unchanged."""
    if "hooks" not in error.details:
        return error
    return InvalidInput(error.message, hint=f"{remedy}, or start a new conversation", details=error.details)


def _find_hook_project(error: InvalidInput, home: Path) -> Path | None:
    """Return the project whose hooks are missing; None if no missing hook comes from a project's file."""
    from bough.guard.hook_file import PROJECT_FILES

    for hook in error.details.get("hooks", ()):
        for name in PROJECT_FILES:
            source = str(hook.get("source", ""))
            if source.endswith(f"/{name}") and Path(source) != home / "hooks.json":
                return Path(source.removesuffix(f"/{name}"))
    return None
