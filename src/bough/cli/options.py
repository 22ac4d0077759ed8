"""Options that several commands share, and the settings they lead to."""

from __future__ import annotations

import asyncio
import math
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, TypeAlias

import typer

from bough.errors import BoughError, InvalidInput
from bough.settings import Settings

if TYPE_CHECKING:
    from bough.events import StoreAdmin

Home: TypeAlias = Annotated[
    str | None, typer.Option("--home", metavar="DIR", help="bough's own folder. [env: BOUGH_HOME; default: ~/.bough]")
]
Store: TypeAlias = Annotated[
    str | None,
    typer.Option("--store", metavar="URL", help="Event store, e.g. sqlite:///bough.db. [env: BOUGH_STORE]"),
]
Json: TypeAlias = Annotated[bool, typer.Option("--json", help="Print JSON for programs.")]
Model: TypeAlias = Annotated[
    str | None,
    typer.Option("--model", "-m", metavar="NAME", help="`offline`, or provider:name, e.g. openai:gpt-5."),
]
BaseUrl: TypeAlias = Annotated[
    str | None, typer.Option("--base-url", metavar="URL", help="OpenAI-format server for openai: models.")
]
Executor: TypeAlias = Annotated[
    str | None,
    typer.Option("--executor", metavar="NAME", help="What runs scripts: sandbox, container[:IMAGE], or unsafe."),
]
SkillRoots: TypeAlias = Annotated[
    list[Path] | None,
    typer.Option("--skills", metavar="DIR", help="A folder of skills to use first; may be repeated."),
]
Workspace: TypeAlias = Annotated[
    Path, typer.Option("--workspace", "-C", metavar="DIR", help="The working folder of tools and scripts.")
]
ScriptTimeout: TypeAlias = Annotated[
    float | None, typer.Option("--script-timeout", metavar="SECONDS", min=0, help="Wall time of one script.")
]


def _number(value: float | None) -> float | None:
    if value is not None and math.isnan(value):
        raise InvalidInput("nan is not a number of seconds", hint="for example 30")
    return value


Timeout: TypeAlias = Annotated[
    float | None,
    typer.Option("--timeout", metavar="SECONDS", min=0, callback=_number, help="Wall time of the whole run."),
]
NoStream: TypeAlias = Annotated[bool, typer.Option("--no-stream", help="Print the answer when it is complete.")]
Check: TypeAlias = Annotated[bool, typer.Option("--check", help="Exit with 1 unless the run finished normally.")]
Policy: TypeAlias = Annotated[
    str | None, typer.Option("--policy", metavar="allow|ask|rules", help="Which tool calls require approval.")
]
MaxSteps: TypeAlias = Annotated[
    int | None,
    typer.Option("--max-steps", "--max-turns", metavar="N", min=0, help="Stop after N steps of one run (500)."),
]
MaxTokens: TypeAlias = Annotated[
    int | None, typer.Option("--max-tokens", metavar="N", min=0, help="Stop when N tokens are used, in and out.")
]
MaxCost: TypeAlias = Annotated[
    float | None, typer.Option("--max-cost-usd", metavar="USD", min=0, help="Stop when that much is spent.")
]
Secret: TypeAlias = Annotated[
    list[str] | None,
    typer.Option("--secret", metavar="NAME[=VAR]", help="A secret for scripts, from the environment; repeatable."),
]
Agent: TypeAlias = Annotated[
    Path | None,
    typer.Option("--agent", metavar="FILE|NAME", help="An agent: a YAML or JSON file, or a name of config.yaml."),
]
Skill: TypeAlias = Annotated[
    str | None, typer.Option("--skill", metavar="NAME", help="Use this skill, as /NAME in the prompt does.")
]
Network: TypeAlias = Annotated[
    list[str] | None,
    typer.Option("--network", metavar="DOMAIN", help="A domain it may reach; may be repeated. Default: none."),
]
Env: TypeAlias = Annotated[
    list[str] | None, typer.Option("--env", metavar="NAME=VALUE", help="A variable it sees; may be repeated.")
]
Title: TypeAlias = Annotated[str | None, typer.Option("--title", metavar="TEXT", help="Title of the conversation.")]
Tags: TypeAlias = Annotated[
    list[str] | None, typer.Option("--tag", metavar="KEY=VALUE", help="A tag; may be repeated.")
]


def parse_skill_roots(roots: list[Path] | None) -> tuple[Path, ...]:
    """Return the folders of skills that were named, absolute.

    Raises:
        InvalidInput: One is not a folder.
    """
    for root in roots or ():
        if not root.is_dir():
            raise InvalidInput(f"{root} is not a folder of skills", hint="--skills takes a folder with skills in it")
    return tuple(root.absolute() for root in roots or ())


def load_settings(
    home: str | None,
    store: str | None,
    *,
    model: str | None = None,
    base_url: str | None = None,
    executor: str | None = None,
    skill_roots: list[Path] | None = None,
    script_timeout: float | None = None,
    cwd: Path | None = None,
) -> Settings:
    """Return the settings with what was given on the command line on top.

    Raises:
        InvalidInput: A value, a `bough.yaml` or a folder of skills is not right.
    """
    return Settings.load(
        home,
        store,
        cwd=cwd,
        model=model,
        base_url=base_url,
        executor=executor,
        skill_roots=list(parse_skill_roots(skill_roots)) or None,
        timeout_seconds=script_timeout,
    )


def parse_env(pairs: list[str] | None) -> dict[str, str]:
    """Return `NAME=VALUE` pairs as a mapping.

    Raises:
        InvalidInput: One has no name or no `=`.
    """
    values: dict[str, str] = {}
    for pair in pairs or ():
        name, separator, value = pair.partition("=")
        if not name or not separator:
            raise InvalidInput(f"--env {pair!r} is not a variable", hint="write NAME=VALUE")
        values[name] = value
    return values


def parse_tags(pairs: list[str] | None) -> dict[str, str]:
    """Return `KEY=VALUE` pairs as a mapping.

    Raises:
        InvalidInput: One has no key or no `=`.
    """
    tags: dict[str, str] = {}
    for pair in pairs or ():
        key, separator, value = pair.partition("=")
        if not key.strip() or not separator:
            raise InvalidInput(f"{pair!r} is not a tag", hint="write KEY=VALUE")
        tags[key.strip()] = value
    return tags


@asynccontextmanager
async def open_settings_store(settings: Settings, *, create: bool = True) -> AsyncGenerator[StoreAdmin]:
    """Open the settings' store for the length of a block.

    Args:
        create: Whether it is made where there is none; what only reads leaves nothing behind.
    """
    from bough.events import open_store

    store = await open_store(settings.store, create=create)
    try:
        yield store
    finally:
        await store.aclose()


def complete_ids(incomplete: str) -> list[tuple[str, str]]:
    """Return the most recent conversations for shell completion: id and title."""

    async def recent() -> list[tuple[str, str]]:
        async with open_settings_store(Settings.load(), create=False) as store:
            page = await store.list(limit=20)
        return [(record.id.hex[-8:], record.title or "") for record in page.items]

    try:
        return [item for item in asyncio.run(recent()) if item[0].startswith(incomplete)]
    except BoughError:
        return []


Conversation: TypeAlias = Annotated[
    str,
    typer.Argument(
        metavar="ID",
        help="An id, its first or last digits, or - for the most recent; ID@SEQ means its first SEQ events.",
        autocompletion=complete_ids,
    ),
]
