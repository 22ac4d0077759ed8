"""The Typer application. Modules of commands are imported only when they are needed."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import fields, is_dataclass
from importlib import import_module
from inspect import Parameter, signature
from typing import Annotated, Any, get_type_hints

import typer
from typer.core import TyperCommand, TyperGroup

from bough import __version__
from bough.cli import options
from bough.cli.complete import read_typed_words
from bough.cli.examples import format_examples, measure_help_width

VERBS: Mapping[str, str] = {
    "run": "run",
    "chat": "chat.command",
    "resume": "resume",
    "fork": "fork",
    "approve": "decide",
    "reject": "decide",
    "answer": "decide",
    "replay": "replay",
    "try": "try_",
    "bisect": "bisect",
    "exec": "execute",
    "doctor": "doctor",
    "demo": "demo",
    "init": "init",
    "schema": "schema",
    "web": "web",
    "serve": "serve",
    "worker": "worker",
    "mcp": "mcp",
    "acp": "acp",
}
"""The module of each command. Its function has the command's name, followed by `_` if Python uses the name."""

NOUNS: Mapping[str, tuple[str, Mapping[str, str]]] = {
    "agents": (
        "Show and check the agents of config.yaml.",
        dict.fromkeys(("list", "show", "check", "schema"), "agents"),
    ),
    "conv": (
        "List, inspect and manage conversations.",
        {
            **dict.fromkeys(("list", "show", "tree", "tail"), "conv.look"),
            "turns": "conv.turns",
            "diff": "conv.diff",
            "search": "conv.search",
            **dict.fromkeys(("export", "import", "adopt"), "conv.transfer"),
            **dict.fromkeys(("tag", "delete"), "conv.change"),
            **dict.fromkeys(("restore", "apply", "collect"), "conv.files"),
        },
    ),
    "skills": (
        "List, check and install skills.",
        {
            **dict.fromkeys(("list", "show"), "skills.look"),
            "check": "skills.check",
            "match": "skills.look",
            "run": "skills.run",
            **dict.fromkeys(("new", "lock"), "skills.change"),
            **dict.fromkeys(("add", "update", "remove", "disable", "enable"), "skills.add"),
            "trust": "skills.trust",
        },
    ),
    "tasks": (
        "List, follow, answer and cancel tasks.",
        {
            **dict.fromkeys(("list", "show", "logs", "wait"), "tasks.look"),
            **dict.fromkeys(("cancel", "retry", "input"), "tasks.change"),
        },
    ),
    "budgets": (
        "List, show and change budgets that conversations share.",
        dict.fromkeys(("list", "show", "change"), "budgets"),
    ),
    "eval": (
        "Run evals, score them and compare runs.",
        {
            **dict.fromkeys(("list", "show"), "eval.show"),
            **dict.fromkeys(("run", "skill"), "eval.run"),
            "harbor": "eval.harbor",
            "data": "eval.run",
            "add": "eval.conversations",
            "judge": "eval.judge",
            "score": "eval.conversations",
            **dict.fromkeys(("compare", "report"), "eval.report"),
        },
    ),
    "a2a": ("Serve agents to A2A clients.", {"serve": "a2a"}),
    "tenants": (
        "List, disable and enable tenants of the agent server.",
        dict.fromkeys(("list", "disable", "enable"), "tenants"),
    ),
    "keys": (
        "Create, list, rotate and revoke keys of the agent server.",
        dict.fromkeys(("create", "list", "revoke", "rotate"), "keys"),
    ),
}
"""The help of each noun, and the module of each of its verbs."""


def build(argv: Sequence[str] = ()) -> typer.Typer:
    """Return the application. If `argv` begins with a command, only this command's module is imported."""
    # A completion has no arguments. Without the typed words, all modules would be imported at each press of Tab.
    argv = argv or read_typed_words()
    first = argv[0] if argv else ""
    second = argv[1] if len(argv) > 1 else ""
    verbs, nouns = VERBS, NOUNS
    if first in (*VERBS, *NOUNS):
        verbs = {name: verb for name, verb in VERBS.items() if name == first}
        nouns = {name: noun for name, noun in NOUNS.items() if name == first}
    app = typer.Typer(
        name="bough",
        help="An agent runtime: conversations that fork, skills as folders.",
        rich_markup_mode=None,
        no_args_is_help=True,
        context_settings={"help_option_names": ["--help", "-h"], "terminal_width": measure_help_width()},
        pretty_exceptions_enable=False,
    )
    app.callback()(_root)
    for name, module in verbs.items():
        app.command(name, cls=GroupedCommand, context_settings=_context_settings(name), epilog=format_examples(name))(
            _load_command(module, name)
        )
    for noun, (help, noun_verbs) in nouns.items():
        if second in noun_verbs:
            noun_verbs = {second: noun_verbs[second]}
        app.add_typer(_make_noun(noun, help, noun_verbs))
    return app


def _make_noun(name: str, help: str, verbs: Mapping[str, str]) -> typer.Typer:
    noun = typer.Typer(name=name, help=help, cls=DefaultCommandGroup, rich_markup_mode=None)
    for verb, module in verbs.items():
        command = f"{name} {verb}"
        noun.command(
            verb, cls=GroupedCommand, context_settings=_context_settings(command), epilog=format_examples(command)
        )(_load_command(module, verb))
    return noun


def _load_command(module: str, name: str) -> Any:
    """Import a command's module and return the command's function, with its option groups spread."""
    commands = import_module(f"bough.cli.commands.{module}")
    return spread(getattr(commands, name, None) or getattr(commands, f"{name}_"))


def _context_settings(name: str) -> dict[str, Any]:
    """Return the click settings of a command. Commands that run a script pass options after its name to the script."""
    return {"allow_interspersed_args": False} if name in ("exec", "skills run") else {}


def _show_version(is_set: bool) -> None:
    if is_set:
        typer.echo(f"bough {__version__}")
        raise typer.Exit


def _root(
    home: options.Home = None,
    store: options.Store = None,
    json: options.Json = False,
    version: Annotated[
        bool, typer.Option("--version", "-V", callback=_show_version, is_eager=True, help="Print the version.")
    ] = False,
) -> None:
    """Declare the options before the command, for completion; `usage.arrange` moves them behind it."""


_HELP = ("--help", "-h")


OPTION_GROUPS: Mapping[str, tuple[str, ...]] = {
    "Agent and model": ("--agent", "--model", "--base-url", "--skills", "--skill", "--executor", "--packages"),
    "Rules": (
        "--policy", "--max-steps", "--max-tokens", "--max-cost-usd", "--budget", "--secret", "--no-files",
    ),
    "Run": ("--timeout", "--script-timeout", "--no-stream", "--check"),
    "Data and output": ("--home", "--store", "--json", "--help"),
}  # fmt: skip
"""The shared options by group. All others are a command's own."""
_RANGE = re.compile(r"\s*\[[\d.]*<?=?x[<>]=?[\d.<=>x]*\]")
"""How Typer writes the bounds of a number after its help."""


class GroupedCommand(TyperCommand):
    """A command whose help lists its options by group."""

    def format_options(self, ctx: Any, formatter: Any) -> None:
        """Write the arguments and the groups of options that are not empty."""
        arguments: list[tuple[str, str]] = []
        groups: dict[str, list[tuple[str, str]]] = {name: [] for name in ("Options", *OPTION_GROUPS)}
        for parameter in self.get_params(ctx):
            record = parameter.get_help_record(ctx)
            if record is None:
                continue
            # Without the bounds of numbers, which an error names: `[x>=0]` is the parser's language.
            row = (record[0], _RANGE.sub("", record[1]))
            if parameter.param_type_name == "argument":
                arguments.append(row)
            else:
                groups[_find_group(parameter.opts)].append(row)
        for title, rows in {"Arguments": arguments, **groups}.items():
            if rows:
                with formatter.section(title):
                    formatter.write_dl(rows)


def _find_group(names: list[str]) -> str:
    shared = (group for group, options in OPTION_GROUPS.items() if not set(options).isdisjoint(names))
    return next(shared, "Options")


class DefaultCommandGroup(TyperGroup):
    """A group of verbs that runs `default_verb` if the command line names no verb."""

    default_verb = "list"

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Insert the default verb if the command line names no verb."""
        # Not during shell completion, because an inserted verb would hide the other verbs.
        if not ctx.resilient_parsing and (not args or (args[0].startswith("-") and args[0] not in _HELP)):
            args = [self.default_verb, *args]
        return super().parse_args(ctx, args)


def spread(command: Callable[..., Any]) -> Callable[..., Any]:
    """Return the command with each dataclass parameter replaced by one option per field."""
    hints = get_type_hints(command, include_extras=True)
    groups = {name: hint for name, hint in hints.items() if isinstance(hint, type) and is_dataclass(hint)}
    groups.pop("return", None)
    if not groups:
        return command

    def call_with_groups(**arguments: Any) -> Any:
        for name, group in groups.items():
            arguments[name] = group(**{field.name: arguments.pop(field.name) for field in fields(group)})
        return command(**arguments)

    # Typer reads name, docstring, signature and annotations, so each must describe the spread parameters.
    parameters = [
        parameter for name in signature(command).parameters for parameter in _spread_parameter(command, name, hints)
    ]
    call_with_groups.__name__, call_with_groups.__doc__ = command.__name__, command.__doc__
    call_with_groups.__signature__ = signature(command).replace(parameters=parameters)  # type: ignore[attr-defined]
    call_with_groups.__annotations__ = {parameter.name: parameter.annotation for parameter in parameters}
    return call_with_groups


def _spread_parameter(command: Callable[..., Any], name: str, hints: dict[str, Any]) -> Iterator[Parameter]:
    """Yield the parameter `name`, or one parameter for each of its fields if its type is a dataclass."""
    parameter, hint = signature(command).parameters[name], hints[name]
    if not (isinstance(hint, type) and is_dataclass(hint)):
        yield parameter.replace(annotation=hint)
        return
    field_hints = get_type_hints(hint, include_extras=True)
    for field in fields(hint):
        yield parameter.replace(name=field.name, annotation=field_hints[field.name], default=field.default)
