"""`docs/reference/config.md` has every field of `config.yaml`, `models-and-keys.md` every provider with a key."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from pydantic import BaseModel

from bough.agents.config import schema
from bough.agents.models import resolve

REFERENCE = Path(__file__).parents[2] / "docs" / "reference"
CONFIG = (REFERENCE / "config.md").read_text("utf-8")
SECTIONS: Mapping[str, type[BaseModel]] = {
    "## Sections": schema.Config,
    "### Models": schema.ModelEntry,
    "### Agents": schema.AgentEntry,
    "### MCP servers": schema.McpServerEntry,
    "### Remote agents": schema.A2AClientEntry,
}


@pytest.mark.parametrize("heading", SECTIONS)
def test_a_table_has_every_field_of_its_section(heading: str) -> None:
    table = CONFIG.partition(f"{heading}\n")[2].partition("\n#")[0]
    names = [
        name for row in re.findall(r"^\| (`[^|]*) \|", table, re.MULTILINE) for name in re.findall(r"`(\w+)`", row)
    ]
    assert sorted(names) == sorted(SECTIONS[heading].model_fields)


def test_the_table_of_agents_has_every_limit() -> None:
    (row,) = re.findall(r"^\| `limits` \| (.*) \|$", CONFIG, re.MULTILINE)
    assert set(schema.LimitsEntry.model_fields) <= set(re.findall(r"\w+", row))


def test_the_table_of_providers_has_the_keys_and_defaults_of_the_code_in_their_order() -> None:
    page = (REFERENCE / "models-and-keys.md").read_text("utf-8")
    rows = re.findall(r"^\| `(\w+)` \| (`[A-Z].*?) \| .*? \| `([^`]*)` \|$", page, re.MULTILINE)
    providers: Mapping[str, Any] = vars(resolve)["_KEYED"]
    expected = [(name, list(provider.keys), provider.default) for name, provider in providers.items()]
    assert [(name, re.findall(r"`(\w+)`", keys), default) for name, keys, default in rows] == expected
