"""What `import bough` offers: every name is there, sorted, and costs nothing before it is used."""

from __future__ import annotations

import subprocess
import sys

import bough
from bough import errors
from bough.events import model

_INTERNAL = {model.MessageStored}
"""What the adapters of other libraries' stores write: no program has a use for it."""


def test_every_name_can_be_had() -> None:
    assert bough.__all__ == sorted(bough.__all__, key=lambda name: (not name.isupper(), name))  # constants first
    for name in bough.__all__:
        found = getattr(bough, name)
        assert name.isupper() or found.__name__ == name
    assert set(bough.__all__) <= set(dir(bough))


def test_every_error_and_every_event_is_among_them() -> None:
    named = {errors.BoughError, *_below(errors.BoughError), *_below(model.BaseEvent)} - _INTERNAL
    assert {kind.__name__ for kind in named} <= set(bough.__all__)
    assert not {kind.__name__ for kind in _INTERNAL} & set(bough.__all__)


def test_what_an_agent_and_its_rules_are_written_with_is_among_them() -> None:
    rules = "AllowList EnvSecret Hook HookKind HookSet Limits ModelAnalyzer RetryPolicy RuleAnalyzer Secrets"
    used = "FilePart ForkOverrides ImagePart KeepFirstCondenser SummarizingCondenser TextPart ToolContext Turn arun run"
    used += " Risk WaitingCall export_messages import_messages"
    assert {*rules.split(), *used.split()} <= set(bough.__all__)


def _below(kind: type) -> set[type]:
    return {each for child in kind.__subclasses__() for each in (child, *_below(child)) if _is_ours(each)}


def _is_ours(kind: type) -> bool:
    return kind.__module__ == "bough.errors" or kind.__module__.startswith("bough.events.")


def test_importing_loads_nothing_heavy() -> None:
    code = "import sys, bough; print(*sorted(m for m in sys.modules if m.partition('.')[0] in sys.argv[1:]))"
    heavy = ["pydantic", "pydantic_ai", "asyncio", "sqlite3", "typer", "rich", "yaml"]
    done = subprocess.run([sys.executable, "-c", code, *heavy], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == ""


def test_an_unknown_name_is_an_attribute_error() -> None:
    assert not hasattr(bough, "Nonsense")
