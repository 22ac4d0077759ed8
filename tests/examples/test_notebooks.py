"""The notebooks: every code cell runs, in order, offline, and what they assert of their results holds."""

from __future__ import annotations

import ast
import inspect
import json
import os
from pathlib import Path
from typing import Any

import pytest

pytestmark = pytest.mark.anyio

NOTEBOOKS = Path(__file__).parents[2] / "examples" / "notebooks"


async def _run(notebook: Path) -> int:
    """Run the code cells as a notebook does, in one namespace and one event loop; return how many there were."""
    cells = [cell for cell in json.loads(notebook.read_text("utf-8"))["cells"] if cell["cell_type"] == "code"]
    names: dict[str, Any] = {"__name__": "__main__"}
    for number, cell in enumerate(cells):
        where = f"{notebook.name} cell {number}"
        code = compile("".join(cell["source"]), where, "exec", flags=ast.PyCF_ALLOW_TOP_LEVEL_AWAIT)
        waiting = eval(code, names)
        if inspect.isawaitable(waiting):
            await waiting
    return len(cells)


@pytest.mark.parametrize(
    "name",
    [
        "example_sub_agents_fixed",
        "example_sub_agents_dynamic",
        "example_tasks",
        pytest.param("example_skills", marks=pytest.mark.needs("bubblewrap")),
    ],
)
async def test_a_notebook_runs_from_its_first_cell_to_its_last(
    name: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """No key is set: nothing leaves this machine."""
    for variable in [each for each in os.environ if each.endswith("_API_KEY")]:
        monkeypatch.delenv(variable)
    for variable in ("BOUGH_MODEL", "BOUGH_BASE_URL", "BOUGH_HOME"):  # which the first cell sets
        monkeypatch.setenv(variable, "")
    monkeypatch.chdir(tmp_path)
    assert await _run(NOTEBOOKS / f"{name}.ipynb") > 3


def test_every_notebook_is_run_and_holds_no_output() -> None:
    """Output is of somebody's machine, and old."""
    books = sorted(NOTEBOOKS.glob("*.ipynb"))
    assert [book.stem for book in books] == [
        "example_skills", "example_sub_agents_dynamic", "example_sub_agents_fixed", "example_tasks",
    ]  # fmt: skip
    for book in books:
        cells = json.loads(book.read_text("utf-8"))["cells"]
        assert all(cell["outputs"] == [] for cell in cells if cell["cell_type"] == "code")
