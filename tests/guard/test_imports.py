"""What importing the guard costs: nothing heavy before it is used."""

from __future__ import annotations

import subprocess
import sys

import bough.guard


def test_every_public_name_is_there() -> None:
    assert sorted(bough.guard.__all__) == bough.guard.__all__
    for name in bough.guard.__all__:
        assert getattr(bough.guard, name) is not None


def test_policies_hooks_and_secrets_import_neither_models_nor_grammars() -> None:
    """Commands that only read pay for what they read."""
    code = (
        "import sys; from bough.guard import Guard, HookSet, Limits, NeverConfirm, RuleAnalyzer, Secrets; "
        "print([m for m in ('pydantic', 'pydantic_ai', 'tree_sitter', 'ahocorasick_rs') if m in sys.modules])"
    )
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert ran.stdout.strip() == "[]"
