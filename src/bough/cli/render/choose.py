"""Which renderer is used."""

from __future__ import annotations

import sys

from bough.cli.render.base import Renderer, wants_colour


def renderer_for(*, json: bool) -> Renderer:
    """Return the renderer for this process's streams: JSON when asked for, colours only on a terminal."""
    if json:
        from bough.cli.render.json import JsonRenderer

        return JsonRenderer(sys.stdout)
    if wants_colour(sys.stdout) or wants_colour(sys.stderr):
        from bough.cli.render.rich import RichRenderer

        return RichRenderer(sys.stdout, sys.stderr)
    from bough.cli.render.plain import PlainRenderer

    return PlainRenderer(sys.stdout, sys.stderr)
