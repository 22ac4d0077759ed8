"""What people type wrong: each mistake has its exit code, says what is wrong and what to type instead."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import yaml

MISTAKES = yaml.safe_load(Path(__file__).with_name("mistakes.yaml").read_text("utf-8"))


@pytest.mark.parametrize("mistake", MISTAKES, ids=lambda mistake: " ".join(map(str, mistake["args"])))
def test_a_mistake_is_explained(cli: Any, mistake: dict[str, Any]) -> None:
    if mistake.get("data"):
        assert cli("run", "bake a cake").returncode == 0
    keys = dict.fromkeys(("OPENAI_API_KEY", "ANTHROPIC_API_KEY", "BOUGH_BASE_URL", "BOUGH_MODEL"), "")
    args = [str(Path.home()) if arg == "~" else arg for arg in mistake["args"]]
    done = cli(*args, **keys)
    assert done.returncode == mistake["exit"], done
    assert mistake["error"] in done.stderr
    assert mistake["hint"] in done.stderr
    assert "error: " in done.stderr
    assert "Traceback" not in done.stderr

    # In front of the command, so that words after a missing argument do not take its place.
    done = cli("--json", *args, **keys)
    if args[0] != "mcp":  # its stdout belongs to the protocol
        answer = json.loads(done.stdout.splitlines()[-1])
        assert done.returncode == mistake["exit"], done
        assert (answer["schema_version"], done.stderr) == (1, "")
        assert mistake["error"] in answer["error"]["message"]
        assert mistake["hint"] in answer["error"]["hint"]
        assert ("bough " + " ".join(args)).startswith(f"bough {answer['command']}".removesuffix(" bough"))


def test_a_mistake_fits_a_narrow_terminal(cli: Any) -> None:
    code, shown = cli.on_terminal("run", "summarise", "these", "files", columns=40, NO_COLOR="1")
    assert code == 2
    assert max(map(len, shown.splitlines())) <= 40
