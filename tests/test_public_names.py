"""What `import bough` offers: every name is there, sorted, and costs nothing before it is used."""

from __future__ import annotations

import subprocess
import sys

import bough
import bough.events
from bough import errors
from bough.events import model

names: list[str] = vars(bough)["__all__"]
_INTERNAL = {model.MessageStored}
"""What the adapters of other libraries' stores write: no program has a use for it."""


def test_every_name_can_be_had() -> None:
    assert names == sorted(names, key=lambda name: (not name.isupper(), name))  # constants first
    for name in names:
        found = getattr(bough, name)
        assert name.isupper() or found.__name__ == name
    assert set(names) <= set(dir(bough))


def test_events_are_in_a_package_of_their_own_and_errors_in_their_module() -> None:
    kinds = {kind.__name__ for kind in _below(model.BaseEvent) - _INTERNAL}
    assert kinds <= set(vars(bough.events)["__all__"])
    assert not {kind.__name__ for kind in {*_INTERNAL, *_below(errors.BoughError)}} & set(names)
    assert not kinds & set(names)


def test_what_an_agent_and_its_rules_are_written_with_is_among_them() -> None:
    rules = "AllowList EnvSecret Hook HookKind HookSet Limits ModelAnalyzer RetryPolicy RuleAnalyzer Secrets"
    used = "ForkOverrides KeepFirstCondenser SummarizingCondenser ToolContext Turn arun run"
    used += " Risk WaitingCall export_messages import_messages"
    assert {*rules.split(), *used.split()} <= set(names)


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
