"""Small plots as SVG, made of numbers alone. Each has a table beside it that says the same."""

from __future__ import annotations

from collections.abc import Sequence

_WIDTH = 240
_HEIGHT = 18
_SCALE = 220


def plot_share(share: float, low: float, high: float) -> str:
    """Return a bar of a share from 0 to 1 with its interval."""
    middle = _HEIGHT / 2
    return (
        f'<svg width="{_WIDTH}" height="{_HEIGHT}" viewBox="0 0 {_WIDTH} {_HEIGHT}" aria-hidden="true">'
        f'<rect class="rail" x="10" y="4" width="{_SCALE}" height="10"/>'
        f'<rect class="bar" x="10" y="4" width="{_clamp(share) * _SCALE:.1f}" height="10"/>'
        f'<line class="range" x1="{_at(low)}" x2="{_at(high)}" y1="{middle}" y2="{middle}"/></svg>'
    )


def plot_strip(values: Sequence[float]) -> str:
    """Return one tick for each value between 0 and the largest; at most 1,000 ticks."""
    top = max(values, default=0.0) or 1.0
    ticks = "".join(
        f'<line class="tick" x1="{_at(value / top)}" x2="{_at(value / top)}" y1="3" y2="15"/>'
        for value in sorted(values)[:1000]
    )
    return (
        f'<svg width="{_WIDTH}" height="{_HEIGHT}" viewBox="0 0 {_WIDTH} {_HEIGHT}" aria-hidden="true">'
        f'<rect class="rail" x="10" y="8" width="{_SCALE}" height="2"/>{ticks}</svg>'
    )


def _at(share: float) -> str:
    return f"{10 + _clamp(share) * _SCALE:.1f}"


def _clamp(share: float) -> float:
    return min(1.0, max(0.0, share))
