"""Values that a shell completes. Nothing that cannot be read completes or prints anything, and no model is loaded."""

from __future__ import annotations

import asyncio
import os
import re
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from bough.errors import BoughError
from bough.settings import Settings, find_project
from bough.types import JsonObject

if TYPE_CHECKING:
    from bough.events.record import ConversationRecord

_RECENT = 20
_SPECIAL = re.compile(r"[^\w .,:/@%+=?#-]+")
"""Characters that a shell may interpret."""
_USED = 200
_MODELS = ("offline", "openai:", "anthropic:", "google:", "groq:", "mistral:")


def read_typed_words() -> list[str]:
    """Return the complete words after `bough` in the line that is completed; empty while the first is being typed."""
    line = os.environ.get("COMP_WORDS") or os.environ.get("_TYPER_COMPLETE_ARGS", "")
    words = line.split()[1:]
    return words if line[-1:].isspace() else words[:-1]


def complete_ids(incomplete: str) -> list[tuple[str, str]]:
    """Return (id, title) of recent conversations of the project whose ids start so; of all if it has none."""
    records = _list_recent(_RECENT, find_project()) or _list_recent(_RECENT)
    return _match_described(incomplete, ((record.id.hex[-8:], record.title or "") for record in records))


def complete_positions(incomplete: str) -> list[tuple[str, str]]:
    """Return ids as `complete_ids` does; after `ID@`, (ID@SEQ, text) of the messages of a user."""
    from bough.events.open import use_store

    name, separator, _ = incomplete.partition("@")
    if not separator:
        return complete_ids(incomplete)

    async def list_messages() -> list[tuple[str, str]]:
        settings = Settings.load()
        async with use_store(settings.store, create=False, keep_copy=settings.copy_before_upgrade) as store:
            cid = await store.resolve(name)
            messages = [stored.as_json() async for stored in store.read(cid, kinds=["UserMessage"])]
        return [(f"{name}@{message['seq']}", _read_text(message)) for message in messages[-_RECENT:]]

    with suppress(BoughError):
        return _match_described(incomplete, asyncio.run(list_messages()))
    return []


def complete_agents(incomplete: str) -> list[str]:
    """Return the names of the agents in the files that are read as config.yaml, without what these extend."""
    import yaml

    from bough.agents.config.file import find_config

    names: list[str] = []
    with suppress(BoughError, OSError, ValueError, KeyError, TypeError, RecursionError, yaml.YAMLError):
        for path in find_config(None, home=Settings.load().home, cwd=Path.cwd(), env=os.environ):
            document: Any = yaml.safe_load(path.read_text("utf-8"))
            names += [str(name) for name in document["agents"]]
    return _match(incomplete, dict.fromkeys(names))


def complete_task_ids(incomplete: str) -> list[tuple[str, str]]:
    """Return (id, state) of the recent tasks whose ids start with `incomplete`."""
    from bough.tasks.stores.backends import has_store, open_task_store

    async def list_tasks() -> list[tuple[str, str]]:
        settings = Settings.load()
        if not has_store(settings.store):
            return []
        tasks = open_task_store(settings.store)
        try:
            page = await tasks.list(limit=_RECENT)
        finally:
            await tasks.aclose()
        return [(task.id.replace("-", "")[-8:], task.state.value) for task in page.items]

    with suppress(BoughError):
        return _match_described(incomplete, asyncio.run(list_tasks()))
    return []


def complete_models(incomplete: str) -> list[str]:
    """Return `offline`, the prefixes of providers, and models of recent conversations."""
    used = (str(record.config.get("model") or "") for record in _list_recent(_USED))
    return _match(incomplete, dict.fromkeys([*_MODELS, *used]))


def complete_skills(incomplete: str) -> list[str]:
    """Return the names of the folders of skills that apply in the working folder."""
    from bough.skills.find.discover import find_skill_files
    from bough.skills.find.places import list_places

    with suppress(BoughError, OSError):
        settings = Settings.load()
        places = list_places(Path.cwd(), home=settings.home, roots=settings.skill_roots)
        names = sorted({name for place in places for _, name in find_skill_files(place, [])})
        return _match(incomplete, names)
    return []


def complete_policies(incomplete: str) -> list[str]:
    """Return the names of policies."""
    return _match(incomplete, ("allow", "ask", "rules"))


def complete_executors(incomplete: str) -> list[str]:
    """Return the names of executors."""
    return _match(incomplete, ("sandbox", "container", "unsafe"))


def complete_statuses(incomplete: str) -> list[str]:
    """Return the statuses of conversations."""
    from typing import get_args

    from bough.events.record import Status

    return _match(incomplete, get_args(Status))


def complete_schemas(incomplete: str) -> list[str]:
    """Return the names of schemas, without those of single events, which the models of events would tell."""
    from bough.cli.examples import EXAMPLES

    return _match(incomplete, ("agent", "config", "chat", "event", *(f"command:{name}" for name in EXAMPLES)))


def _read_text(message: JsonObject) -> str:
    return " ".join(str(part.get("text", "")) for part in message["content"])


def _match(incomplete: str, values: Iterable[str]) -> list[str]:
    return [value for value, _ in _match_described(incomplete, ((value, "") for value in values))]


def _match_described(incomplete: str, values: Iterable[tuple[str, str]]) -> list[tuple[str, str]]:
    """Return the values that start so, with their descriptions, in characters that no shell interprets."""
    # zsh evaluates what it completes: a `$(…)` in the title of a conversation would run at the press of Tab.
    return [
        (value, _SPECIAL.sub(" ", about))
        for value, about in values
        if value and value.startswith(incomplete) and not _SPECIAL.search(value)
    ]


def _list_recent(limit: int, folder: str | None = None) -> list[ConversationRecord]:
    """Return the conversations below a folder that changed last; none if the store is missing, locked or damaged."""
    from bough.events.open import use_store
    from bough.events.record import ConversationFilter

    async def list_page() -> list[ConversationRecord]:
        settings = Settings.load()
        async with use_store(settings.store, create=False, keep_copy=settings.copy_before_upgrade) as store:
            return list((await store.list(ConversationFilter(folder=folder), limit=limit)).items)

    # An error message would appear in the line that is being typed.
    with suppress(BoughError):
        return asyncio.run(list_page())
    return []
