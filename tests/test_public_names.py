"""What `import bough` offers: every name is there, sorted, and costs nothing before it is used."""

from __future__ import annotations

import subprocess
import sys

import bough


def test_every_name_can_be_had() -> None:
    assert bough.__all__ == sorted(bough.__all__)
    for name in bough.__all__:
        assert getattr(bough, name).__name__ == name
    assert set(bough.__all__) <= set(dir(bough))


def test_importing_loads_nothing_heavy() -> None:
    code = "import sys, bough; print(*sorted(m for m in sys.modules if m.partition('.')[0] in sys.argv[1:]))"
    heavy = ["pydantic", "pydantic_ai", "asyncio", "sqlite3", "typer", "rich", "yaml"]
    done = subprocess.run([sys.executable, "-c", code, *heavy], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == ""


def test_an_unknown_name_is_an_attribute_error() -> None:
    assert not hasattr(bough, "Nonsense")
