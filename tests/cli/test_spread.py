"""Options that belong together: each is an option of the command, and they arrive as one."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from inspect import signature
from typing import Any

from bough.cli.app import spread


@dataclass(frozen=True)
class Size:
    width: int = 80
    height: int | None = None


def draw(name: str, size: Size = Size(), dark: bool = False) -> Any:
    """Draw."""
    return name, size, dark


def test_a_group_is_spread_where_it_stands_and_put_together_again() -> None:
    command = spread(draw)
    assert [(each.name, each.annotation, each.default) for each in signature(command).parameters.values()][1:] == [
        ("width", int, 80),
        ("height", int | None, None),
        ("dark", bool, False),
    ]
    assert command(name="a", width=20, height=3, dark=True) == ("a", Size(20, 3), True)
    assert (command.__name__, command.__doc__) == ("draw", "Draw.")


def test_a_command_without_groups_stays_what_it_is() -> None:
    assert spread(sys.exit) is sys.exit
