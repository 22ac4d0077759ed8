"""The reference of the command line: a page for each command, made from the program."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import typer

from bough.cli.app import build
from bough.cli.examples import EXAMPLES
from bough.cli.help import SUMMARIES
from bough.errors import OUTCOMES
from tools.site.pages import normalize

FOLDER = "reference/commands"

_EXIT_CODES = "Exit codes are those of [every command](index.md#exit-codes)."
_COMMON = frozenset({"--home", "--store", "--json", "--help"})


def render_commands() -> dict[str, str]:
    """Return the Markdown of each page by its path on the site."""
    commands: dict[str, Any] = getattr(typer.main.get_command(build()), "commands")  # noqa: B009 - a group's own
    pages = {f"{FOLDER}/index.md": _render_index()}
    for group in SUMMARIES.values():
        for name in group:
            pages[f"{FOLDER}/{name}.md"] = normalize("\n\n".join(_render_command(name, commands[name])))
    return pages


def _render_index() -> str:
    parts = [
        "# Commands",
        "`bough COMMAND [ARGUMENTS] [OPTIONS]`. `bough COMMAND --help` shows the same in a terminal.",
    ]
    for title, group in SUMMARIES.items():
        rows = [f"| [`bough {name}`]({name}.md) | {summary} |" for name, summary in group.items()]
        parts += [f"## {title}", "\n".join(["| command | what it does |", "|---|---|", *rows])]
    parts += [
        "## Options of every command",
        "\n".join(
            [
                "| option | meaning |",
                "|---|---|",
                "| `--home DIR` | data folder: `BOUGH_HOME`, else `~/.bough` |",
                "| `--store URL` | event store: `BOUGH_STORE`, else `bough.db` in the data folder |",
                "| `--json` | print the result as JSON, in one envelope |",
                "| `--help`, `-h` | show help with examples |",
            ]
        ),
        "## Exit codes",
        "An error prints a message and a hint to stderr. [Errors by code](../errors.md) explains each code.",
        "\n".join(["| exit code | error codes |", "|---:|---|", "| 0 | none |", *_list_exit_codes()]),
    ]
    return "\n\n".join(parts) + "\n"


def _list_exit_codes() -> Iterator[str]:
    for number in sorted({outcome.exit_code for outcome in OUTCOMES.values()}):
        codes = [f"`{code}`" for code, outcome in OUTCOMES.items() if outcome.exit_code == number]
        yield f"| {number} | {', '.join(codes)} |"


def _render_command(name: str, command: Any) -> Iterator[str]:
    yield f"# bough {name}"
    verbs: dict[str, Any] = getattr(command, "commands", {})
    if not verbs:
        yield from _render_usage(name, command)
        yield _EXIT_CODES
        return
    yield command.help
    if "list" in verbs:
        yield f"`bough {name}` alone is `bough {name} list`."
    for verb, noun_command in verbs.items():
        yield f"## bough {name} {verb}"
        yield from _render_usage(f"{name} {verb}", noun_command)
    yield _EXIT_CODES


def _render_usage(name: str, command: Any) -> Iterator[str]:
    arguments = [parameter for parameter in command.params if parameter.param_type_name == "argument"]
    options = [parameter for parameter in command.params if parameter.param_type_name == "option"]
    usage = " ".join(["bough", name, *(_name_argument(argument) for argument in arguments), "[OPTIONS]"])
    yield f"```text\n{usage}\n```"
    yield command.help
    if arguments:
        rows = [f"| `{_name_argument(argument)}` | {_explain(argument)} |" for argument in arguments]
        yield "\n".join(["| argument | meaning |", "|---|---|", *rows])
    own = [option for option in options if not option.hidden and not _COMMON & set(option.opts)]
    if own:
        rows = [f"| {_name_option(option)} | {_explain(option)} |" for option in own]
        yield "\n".join(["| option | meaning |", "|---|---|", *rows])
    if examples := EXAMPLES.get(name):
        yield "```sh\n" + "\n".join(examples) + "\n```"


def _name_argument(argument: Any) -> str:
    text = argument.metavar or argument.name.upper()
    text = text if argument.required or text.startswith("[") else f"[{text}]"
    return f"{text}..." if argument.nargs == -1 and not text.rstrip("]").endswith("...") else text


def _name_option(option: Any) -> str:
    value = "" if option.is_flag else " " + (option.metavar or option.type.name.upper())
    names = [*option.opts, *option.secondary_opts]
    return ", ".join(f"`{name}{value}`".replace("|", "\\|") for name in names)


def _explain(parameter: Any) -> str:
    """Return the help of a parameter, with its default if it has one that says something."""
    help: str = (parameter.help or "").replace("|", "\\|")
    default = parameter.default
    if isinstance(default, bool) or default in (None, (), [], "") or "efault" in help or callable(default):
        return help
    return f"{help} Default: `{default}`."
