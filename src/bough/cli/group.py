"""A noun with a default verb: `bough conv` is `bough conv list`, and `bough conv --limit 5` too."""

from __future__ import annotations

from typing import Any

from typer.core import TyperGroup

_HELP = ("--help", "-h")


class DefaultCommandGroup(TyperGroup):
    """A group of verbs; the one marked by `default_verb` runs where none is named."""

    default_verb = "list"

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Put the default verb in front of options that are not the group's own, but not while a shell completes."""
        if not ctx.resilient_parsing and (not args or (args[0].startswith("-") and args[0] not in _HELP)):
            args = [self.default_verb, *args]
        return super().parse_args(ctx, args)
