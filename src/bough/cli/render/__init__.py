"""Output of results: the `Renderer` protocol, and its implementations for pipes, terminals and programs."""

from __future__ import annotations

import sys

from bough.cli.render.base import Renderer, Report, wants_colour

__all__ = ["Renderer", "Report", "renderer_for"]


def renderer_for(*, json: bool, command: str = "bough") -> Renderer:
    """Return the renderer for stdout and stderr: JSON if requested, and colours only on a terminal.

    Args:
        command: The command that JSON names with an error.
    """
    if json:
        from bough.cli.render.json import JsonRenderer

        return JsonRenderer(sys.stdout, command)
    if wants_colour(sys.stdout) or wants_colour(sys.stderr):
        # Rich takes longer to import than most commands take to run, so pipes never load it.
        from bough.cli.render.rich import RichRenderer

        return RichRenderer(sys.stdout, sys.stderr)
    from bough.cli.render.plain import PlainRenderer

    return PlainRenderer(sys.stdout, sys.stderr)
