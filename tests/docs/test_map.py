"""The map of the code names what there is, and no walk is longer than twelve stops."""

from __future__ import annotations

import re
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path

import pytest

TEXT = (Path(__file__).parents[2] / "docs" / "concepts" / "map.md").read_text("utf-8")
*WALKS, OTHER_PLACES = re.split(r"^## ", TEXT, flags=re.MULTILINE)[1:]
NAMES = sorted(set(re.findall(r"`([a-z_]+(?:\.\w+)+)`", TEXT)))


@pytest.mark.parametrize("name", NAMES)
def test_a_name_of_the_map_exists(name: str) -> None:
    module, rest = f"bough.{name}", list[str]()
    while find_spec_of(module) is None:
        module, _, last = module.rpartition(".")
        rest.insert(0, last)
        assert module != "bough", f"there is no module for {name}"
    found = import_module(module)
    for attribute in rest:
        assert hasattr(found, attribute), f"{module} has no {'.'.join(rest)}"
        found = getattr(found, attribute)


def find_spec_of(module: str) -> object:
    try:
        return find_spec(module)
    except ModuleNotFoundError:  # its parent is a class or a module, not a package
        return None


def test_the_walks_are_short() -> None:
    assert [walk.partition("\n")[0] for walk in WALKS] == [
        "One message", "One tool call", "One script", "One fork", "One crash", "One sub-agent", "One request over HTTP",
        "One eval",
    ]  # fmt: skip
    assert all(3 < len(re.findall(r"^\d+\. ", walk, flags=re.MULTILINE)) <= 12 for walk in WALKS)
    assert OTHER_PLACES.startswith("Other places\n")
    assert len(NAMES) > 60
