"""An event store under programs of PydanticAI, with a version that has the interface, installed for the test."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from bough.conversation.adapters.message_log import derive_id
from bough.events import open_store

pytestmark = [pytest.mark.anyio, pytest.mark.slow, pytest.mark.timeout(600)]

VERSION = "2.68.0"
REPOSITORY = Path(__file__).parents[2]
PROGRAMS = Path(__file__).parent / "newer" / "pydantic_store.py"
OUTSIDE = dict(os.environ)
"""Before fixtures change it: packages that were fetched once are in the cache of whoever runs the tests."""


def run(*command: str | Path, env: dict[str, str] | None = None) -> str:
    done = subprocess.run(command, env=env or OUTSIDE, cwd="/", capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.fixture(scope="module")
def newer(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The interpreter of a new virtual environment with bough and a newer PydanticAI."""
    folder = tmp_path_factory.mktemp("newer")
    python = folder / "bin" / "python"
    wanted = ("-e", str(REPOSITORY), f"pydantic-ai-slim=={VERSION}")
    uv = shutil.which("uv", path=os.pathsep.join([str(Path(sys.executable).parent), OUTSIDE.get("PATH", "")]))
    if uv is not None:
        run(uv, "venv", "--quiet", "--python", sys.executable, folder)
        run(uv, "pip", "install", "--quiet", "--python", python, *wanted)
    else:
        run(sys.executable, "-m", "venv", folder)
        run(python, "-m", "pip", "install", "--quiet", *wanted)
    return python


@pytest.fixture
def program(newer: Path, tmp_path: Path) -> Any:
    url = f"sqlite:///{tmp_path / 'log.db'}"

    def program(name: str, argument: str, *, store: str = url) -> Any:
        return json.loads(run(newer, "-W", "error", PROGRAMS, name, store, argument, env=dict(os.environ)))

    return program


async def test_an_agent_saves_another_process_goes_on_and_forks(program: Any, tmp_path: Path) -> None:
    talked = program("talk", "support/42")
    went_on = program("go_on", "support/42")
    assert went_on["first"] == talked["messages"], "byte for byte what was saved"
    assert (went_on["whole"], went_on["shared"], went_on["output"]) == (True, True, "on the fork")
    assert went_on["lengths"] == [8, 6]
    assert went_on["requests"] == [2, 4], "what was used is carried on"
    assert went_on["scopes"] == ["anna", "anna"]
    store = await open_store(f"sqlite:///{tmp_path / 'log.db'}")
    fork = await store.get(derive_id(went_on["fork"]))
    assert (fork.forked_from, fork.base) == (derive_id("support/42"), 4), "the prefix is shared, not copied"
    stored = [str(each.id) async for each in store.read(derive_id("support/42")) if each.kind == "MessageStored"]
    assert stored[:4] == talked["entries"]
    assert (await store.check()).findings == ()
    await store.aclose()


def test_a_run_that_waits_for_approval_goes_on_from_what_was_saved(program: Any) -> None:
    assert program("wait", "w") == {"waited": 1, "output": "done", "waits": False}


@pytest.mark.parametrize("store", ["memory:", "sqlite:///{}/random.db"])
def test_it_answers_as_pydantic_ais_own_store_does(program: Any, tmp_path: Path, store: str) -> None:
    """Saves, rewrites, branches, forks, deletions and stale copies at random; then nothing is left behind."""
    seeds = 12
    compared = program("compare", f"0-{seeds}", store=store.format(tmp_path))
    assert compared == {"steps": 40 * seeds, "left": 0, "events": 0}


def test_the_example_of_the_documentation_runs(newer: Path) -> None:
    page = (REPOSITORY / "docs" / "how-to" / "use-with-pydantic-ai.md").read_text("utf-8")
    (example,) = re.findall(r"^```python pydantic-ai>=2.68\n(.*?)^```", page, re.MULTILINE | re.DOTALL)
    said = run(newer, "-W", "error", "-c", example, env=dict(os.environ))
    assert "('geography', None)" in said
    assert ", 'geography')" in said
