"""How results reach the reader: one small contract, and its renderers for pipes, terminals and programs."""

from bough.cli.render.base import Renderer, Report
from bough.cli.render.choose import renderer_for

__all__ = ["Renderer", "Report", "renderer_for"]
