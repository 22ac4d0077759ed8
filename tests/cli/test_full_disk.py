"""A disk that fills up in the middle: told as such, and everything that was acknowledged is still there."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

SCRIPT = """
set -u
bough() {{ "{python}" -m bough.cli.main "$@"; }}
bough run -m offline "bake a cake" > /dev/null 2>&1 || exit 90
bough conv show --json > "$OUT/before.json"
i=0
while [ $i -lt 12 ] && bough resume - -m offline "$(cat "$OUT/long.txt")" > /dev/null 2>&1; do
  i=$((i + 1))
done
bough resume - -m offline "$(cat "$OUT/long.txt")" --json > "$OUT/result.json" 2>/dev/null; echo $? > "$OUT/code"
bough conv show --json > "$OUT/after.json"; echo $? > "$OUT/code-after"
bough doctor --json > "$OUT/doctor.json"
"""


@pytest.mark.slow
@pytest.mark.needs("bubblewrap")  # it makes the small disk
def test_a_full_disk_is_told_with_6_and_the_store_opens_afterwards_with_every_acknowledged_event(
    cli: Any, tmp_path: Path
) -> None:
    (tmp_path / "long.txt").write_text("cake " * 20_000)
    small = ["--size", str(1 << 20), "--tmpfs", "/mnt"]
    command = ["bwrap", "--dev-bind", "/", "/", *small, "--chdir", str(cli.folder), "sh", "-c"]
    environment = cli.env(BOUGH_HOME="/mnt/home", OUT=str(tmp_path))
    subprocess.run([*command, SCRIPT.format(python=sys.executable)], env=environment, check=True)
    assert (tmp_path / "code").read_text() == "6\n"
    error = json.loads((tmp_path / "result.json").read_text().splitlines()[-1])["error"]
    assert error["code"] == "store_error"
    assert "full" in error["message"] + error["hint"]
    assert (tmp_path / "code-after").read_text() == "0\n"
    before, after = (
        json.loads((tmp_path / f"{name}.json").read_text())["data"]["events"] for name in ("before", "after")
    )
    assert after[: len(before)] == before
    assert [event["seq"] for event in after] == list(range(len(after)))
    checks = json.loads((tmp_path / "doctor.json").read_text())["data"]["checks"]
    states = {check["name"]: check["state"] for check in checks if check["part"] == "store"}
    states.pop("kept states")  # there is no room for the table of kept states
    assert set(states.values()) == {"ok"}
