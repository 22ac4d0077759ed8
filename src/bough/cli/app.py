"""The commands put together."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from bough import __version__
from bough.cli.commands import chat, conv, doctor, run, skills
from bough.cli.group import Noun

_CONTEXT: dict[str, Any] = {"help_option_names": ["--help", "-h"]}


def build() -> typer.Typer:
    """Return the application."""
    app = typer.Typer(
        name="bough", help="Conversations that fork, skills as folders.", rich_markup_mode=None, no_args_is_help=True,
        context_settings=_CONTEXT, pretty_exceptions_enable=False,
    )  # fmt: skip
    app.callback()(_root)
    for name, command in (
        ("run", run.run),
        ("chat", chat.chat),
        ("resume", run.resume),
        ("fork", run.fork),
    ):
        app.command(name)(command)
    app.add_typer(_noun("conv", "Conversations: list, show, tree, tail.", conv, ("list", "show", "tree", "tail")))
    app.add_typer(
        _noun("skills", "Skills: list, show, check, match, trust.", skills, ("list", "show", "check", "match", "trust"))
    )
    app.command("doctor")(doctor.doctor)
    return app


def _noun(name: str, help: str, module: Any, verbs: tuple[str, ...]) -> typer.Typer:
    noun = typer.Typer(name=name, help=help, cls=Noun, rich_markup_mode=None, context_settings=_CONTEXT)
    for verb in verbs:
        noun.command(verb)(getattr(module, f"{verb}_" if verb == "list" else verb))
    return noun


def _show_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"bough {__version__}")
        raise typer.Exit


def _root(
    version: Annotated[
        bool, typer.Option("--version", "-V", callback=_show_version, is_eager=True, help="Print the version.")
    ] = False,
) -> None:
    """An agent runtime whose conversations fork like git branches, with skills as folders and a real sandbox."""
