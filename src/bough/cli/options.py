"""Options that several commands share, and functions that read their values."""

from __future__ import annotations

import math
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, TypeAlias

import typer

from bough.cli.complete import (
    complete_agents,
    complete_executors,
    complete_ids,
    complete_models,
    complete_policies,
    complete_positions,
    complete_skills,
)
from bough.errors import InvalidInput
from bough.settings import Settings

if TYPE_CHECKING:
    from bough.conversation.check import RunCheck
    from bough.events import StoreAdmin

Home: TypeAlias = Annotated[
    str | None, typer.Option("--home", metavar="DIR", help="Data folder. [env: BOUGH_HOME; default: ~/.bough]")
]
Store: TypeAlias = Annotated[
    str | None,
    typer.Option("--store", metavar="URL", help="Event store, e.g. sqlite:///bough.db. [env: BOUGH_STORE]"),
]
Json: TypeAlias = Annotated[bool, typer.Option("--json", help="Print the result as JSON.")]
Model: TypeAlias = Annotated[
    str | None,
    typer.Option(
        "--model",
        "-m",
        metavar="NAME",
        help="Model, e.g. openai:gpt-5; `offline` needs no key.",
        autocompletion=complete_models,
    ),
]
BaseUrl: TypeAlias = Annotated[
    str | None, typer.Option("--base-url", metavar="URL", help="Server for openai: models (OpenAI-compatible).")
]
Executor: TypeAlias = Annotated[
    str | None,
    typer.Option(
        "--executor",
        metavar="NAME",
        help="Where scripts run: sandbox, container[:IMAGE] or unsafe.",
        autocompletion=complete_executors,
    ),
]
Packages: TypeAlias = Annotated[
    Path | None,
    typer.Option("--packages", metavar="DIR", help="Virtual environment that scripts in the sandbox can import from."),
]
SkillRoots: TypeAlias = Annotated[
    list[Path] | None,
    typer.Option("--skills", metavar="DIR", help="Folder of skills to search first; repeatable."),
]
Workspace: TypeAlias = Annotated[
    Path, typer.Option("--workspace", "-C", metavar="DIR", help="Working folder of tools and scripts.")
]
ScriptTimeout: TypeAlias = Annotated[
    float | None, typer.Option("--script-timeout", metavar="SECONDS", min=0, help="Time limit for each script.")
]


def require_number(value: float | None) -> float | None:
    """Return a number of seconds unchanged.

    Raises:
        InvalidInput: The number is nan, because the option's `min=0` does not reject nan.
    """
    if value is not None and math.isnan(value):
        raise InvalidInput("nan is not a number of seconds", hint="for example 30")
    return value


Timeout: TypeAlias = Annotated[
    float | None,
    typer.Option("--timeout", metavar="SECONDS", min=0, callback=require_number, help="Time limit for the whole run."),
]
NoStream: TypeAlias = Annotated[bool, typer.Option("--no-stream", help="Print the answer when it is complete.")]
Check: TypeAlias = Annotated[bool, typer.Option("--check", help="Exit with code 1 unless the run finished normally.")]
Until: TypeAlias = Annotated[
    str | None,
    typer.Option("--until", metavar="CMD", help="Continue until this command, run in the sandbox, exits with 0."),
]
CheckTimeout: TypeAlias = Annotated[
    float,
    typer.Option("--check-timeout", metavar="SECONDS", min=0, callback=require_number, help="Time limit of a check."),
]
Policy: TypeAlias = Annotated[
    str | None,
    typer.Option(
        "--policy",
        metavar="allow|ask|rules",
        help="Which tool calls need approval.",
        autocompletion=complete_policies,
    ),
]
MaxSteps: TypeAlias = Annotated[
    int | None,
    typer.Option("--max-steps", "--max-turns", metavar="N", min=0, help="Stop a run after N steps. Default: 500."),
]
MaxTokens: TypeAlias = Annotated[
    int | None, typer.Option("--max-tokens", metavar="N", min=0, help="Stop after N tokens, input and output together.")
]
MaxCost: TypeAlias = Annotated[
    float | None, typer.Option("--max-cost-usd", metavar="USD", min=0, help="Stop when the cost reaches this amount.")
]
Budget: TypeAlias = Annotated[
    list[str] | None,
    typer.Option(
        "--budget", metavar="ID[=usd:5,…]", help="Shared budget; usd:N, tokens:N, requests:N create it. Repeatable."
    ),
]
NoFiles: TypeAlias = Annotated[bool, typer.Option("--no-files", help="Keep no files: changes cannot be taken back.")]
Secret: TypeAlias = Annotated[
    list[str] | None,
    typer.Option("--secret", metavar="NAME[=VAR]", help="Secret for scripts, read from the environment; repeatable."),
]
Agent: TypeAlias = Annotated[
    Path | None,
    typer.Option(
        "--agent",
        metavar="FILE|NAME",
        help="Agent: a YAML or JSON file, or a name in config.yaml.",
        autocompletion=complete_agents,
    ),
]
Skill: TypeAlias = Annotated[
    str | None,
    typer.Option(
        "--skill",
        metavar="NAME",
        help="Use this skill, like /NAME in the prompt.",
        autocompletion=complete_skills,
    ),
]
Network: TypeAlias = Annotated[
    list[str] | None,
    typer.Option("--network", metavar="DOMAIN", help="Domain the script may reach; repeatable. Default: none."),
]
Env: TypeAlias = Annotated[
    list[str] | None,
    typer.Option("--env", metavar="NAME=VALUE", help="Environment variable of the script; repeatable."),
]
Title: TypeAlias = Annotated[str | None, typer.Option("--title", metavar="TEXT", help="Title of the conversation.")]
Tags: TypeAlias = Annotated[
    list[str] | None, typer.Option("--tag", metavar="KEY=VALUE", help="Tag of the conversation; repeatable.")
]


def parse_skill_roots(roots: list[Path] | None) -> tuple[Path, ...]:
    """Return the absolute paths of folders of skills.

    Raises:
        InvalidInput: A path is not a folder.
    """
    for root in roots or ():
        if not root.is_dir():
            raise InvalidInput(f"{root} is not a folder of skills", hint="pass a folder that contains skills")
    return tuple(root.absolute() for root in roots or ())


def load_settings(
    home: str | None,
    store: str | None,
    *,
    model: str | None = None,
    base_url: str | None = None,
    executor: str | None = None,
    packages: Path | None = None,
    skill_roots: list[Path] | None = None,
    script_timeout: float | None = None,
    cwd: Path | None = None,
) -> Settings:
    """Return the settings; options of the command line override the environment and files.

    Raises:
        InvalidInput: A value, `bough.yaml` or a folder of skills is invalid.
    """
    return Settings.load(
        home,
        store,
        cwd=cwd,
        model=model,
        base_url=base_url,
        executor=executor,
        packages=packages,
        skill_roots=list(parse_skill_roots(skill_roots)) or None,
        timeout_seconds=script_timeout,
    )


def make_check(until: str | None, seconds: float) -> RunCheck | None:
    """Return the check of `--until`; None without one.

    Raises:
        InvalidInput: The command is empty or too long, or the time limit is 0.
    """
    if until is None:
        return None
    from bough.conversation.check import RunCheck

    return RunCheck(command=until, timeout_seconds=seconds, until=True)


def parse_env(pairs: list[str] | None) -> dict[str, str]:
    """Return `NAME=VALUE` pairs as a mapping.

    Raises:
        InvalidInput: A pair has no name or no `=`.
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
        InvalidInput: A pair has no key or no `=`.
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
    """Yield the open store of the settings, and close it at the end of the block.

    Args:
        create: Create the store if it is missing. Commands that only read pass False, so that they create no files.
    """
    from bough.events.open import use_store

    async with use_store(settings.store, create=create, keep_copy=settings.copy_before_upgrade) as store:
        yield store


Conversation: TypeAlias = Annotated[
    str,
    typer.Argument(
        metavar="ID",
        help="Conversation id, or its first or last digits; - for the latest here. ID@SEQ: its first SEQ events.",
        autocompletion=complete_positions,
    ),
]
WholeConversation: TypeAlias = Annotated[
    str,
    typer.Argument(
        metavar="ID",
        help="Conversation id, or its first or last digits; - for the latest here.",
        autocompletion=complete_ids,
    ),
]
