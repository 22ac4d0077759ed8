"""`docs/reference/protocols.md` names tests that are there."""

from __future__ import annotations

import ast
import re
from pathlib import Path

ROOT = Path(__file__).parents[2]
_NAMED = re.compile(r"`(tests/[\w/]+\.py)::(\w+)`")


def test_every_demand_names_a_test_that_is_there() -> None:
    page = (ROOT / "docs" / "reference" / "protocols.md").read_text()
    rows = [
        line for line in page.splitlines() if line.startswith("| ") and not line.startswith(("| section", "| program"))
    ]
    assert len(rows) > 20
    for row in rows:
        found = _NAMED.search(row)
        assert found, f"no test: {row}"
        tree = ast.parse((ROOT / found[1]).read_text())
        names = {node.name for node in ast.walk(tree) if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)}
        assert found[2] in names, found[0]
