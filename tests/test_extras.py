"""The table of extras agrees with the package's own metadata."""

from __future__ import annotations

import importlib.metadata
import re
import subprocess
import sys
from collections import defaultdict

import pytest

from bough.extras import EXTRAS, missing_package


def _extras() -> set[str]:
    return set(importlib.metadata.metadata("bough").get_all("Provides-Extra") or ())


def test_each_extra_of_the_table_exists() -> None:
    assert set(EXTRAS.values()) <= _extras()


def test_each_package_that_an_extra_requires_is_in_the_table() -> None:
    modules: dict[str, set[str]] = defaultdict(set)
    for module, distributions in importlib.metadata.packages_distributions().items():
        for name in distributions:
            modules[name.lower().replace("_", "-")].add(module)
    for requirement in importlib.metadata.requires("bough") or ():
        extra = re.search(r"extra == '(server|evals|postgres|docker|a2a)'", requirement)
        if extra is None:
            continue
        distribution = re.match(r"[\w.-]+", requirement)
        assert distribution is not None
        imported = modules[distribution[0].lower().replace("_", "-")]
        assert imported & EXTRAS.keys(), f"{distribution[0]} of the extra {extra[1]}"


def test_a_module_below_a_package_counts_as_the_package() -> None:
    unavailable = missing_package(ModuleNotFoundError("no", name="sklearn.cluster"))
    assert unavailable is not None
    assert unavailable.hint == "pip install 'bough[evals]'"
    assert unavailable.exit_code == 6


@pytest.mark.parametrize("name", ["mytools", None])
def test_other_modules_are_not_ours(name: str | None) -> None:
    assert missing_package(ModuleNotFoundError("no", name=name)) is None


_WITHOUT_POSTGRES = """
import sys
sys.modules["psycopg"] = None
from bough import Conversation
from bough.errors import Unavailable
try:
    Conversation("offline", store="postgresql://localhost/x")
except Unavailable as error:
    print(error.hint)
"""


def test_a_program_without_a_package_is_told_the_extra() -> None:
    command = [sys.executable, "-c", _WITHOUT_POSTGRES]
    printed = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    assert printed == "pip install 'bough[postgres]'\n"
