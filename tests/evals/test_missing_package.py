"""A name that needs a package which is not installed says which one, and how to get it."""

from __future__ import annotations

import subprocess
import sys

import pytest

PROGRAM = """
import sys
sys.modules["{package}"] = None  # what an import finds where the package is not installed
from bough.errors import Unavailable
try:
    from {module} import {name}
except Unavailable as error:
    print(error.message, "|", error.hint)
"""


@pytest.mark.parametrize(
    ("module", "name", "package", "hint"),
    [
        ("bough.evals", "score_logs", "pydantic_evals", "pip install 'bough[evals]'"),
        ("bough.testing", "EventStoreContract", "pytest", "pip install pytest"),
    ],
)
def test_the_missing_package_is_named(module: str, name: str, package: str, hint: str) -> None:
    program = PROGRAM.format(module=module, name=name, package=package)
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    message, _, said = done.stdout.strip().partition(" | ")
    assert (message, said) == (f"{module}.{name} needs the package {package}", hint), done.stderr
