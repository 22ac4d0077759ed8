"""What `import bough` offers: every name is there, sorted, and costs nothing before it is used."""

from __future__ import annotations

import inspect
import re
import subprocess
import sys
from collections.abc import Iterator
from types import FunctionType

import bough
import bough.events
from bough import errors
from bough.events import model

names: list[str] = vars(bough)["__all__"]

_OF_ANY_AGENT = re.compile(
    r"\b(?:Async|Remote)?(?:Conversation|AgentSpec|RunContext|AbstractAgent|Agent|AgentRun|ToolsetTool|FunctionToolset)"
    r"\[[^\[\]]*\]"
)
"""Types with a parameter for the output or the dependencies of an agent, where `Any` stands for every agent."""

_OF_PYDANTIC_AI = {"SkillToolset.call_tool", "get_agent"}
"""They have the signatures of PydanticAI's own classes. JSON values have the type `Json`."""

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


def test_no_signature_has_a_value_of_any_type() -> None:
    """A caller's type checker says nothing about an argument or a result that is `Any`."""
    untyped = {
        f"{function.__qualname__}({name}: {annotation})"
        for function in _iterate_functions()
        for name, annotation in function.__annotations__.items()
        if re.search(r"\bAny\b", _OF_ANY_AGENT.sub("", _OF_ANY_AGENT.sub("", str(annotation))))
        and function.__qualname__ not in _OF_PYDANTIC_AI
    }
    assert untyped == set()


def _iterate_functions() -> Iterator[FunctionType]:
    """Yield the public functions, and the public methods and constructors of the public classes."""
    for value in (getattr(bough, name) for name in names):
        if inspect.isfunction(value):
            yield value
        elif inspect.isclass(value):
            attributes = [
                item for kind in value.__mro__ if kind.__module__.startswith("bough") for item in vars(kind).items()
            ]
            for name, attribute in attributes:
                function = (
                    attribute.fget if isinstance(attribute, property) else getattr(attribute, "__func__", attribute)
                )
                if isinstance(function, FunctionType) and (name == "__init__" or not name.startswith("_")):
                    yield function


def test_importing_loads_nothing_heavy() -> None:
    code = "import sys, bough; print(*sorted(m for m in sys.modules if m.partition('.')[0] in sys.argv[1:]))"
    heavy = ["pydantic", "pydantic_ai", "asyncio", "sqlite3", "typer", "rich", "yaml"]
    done = subprocess.run([sys.executable, "-c", code, *heavy], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == ""


def test_an_unknown_name_is_an_attribute_error() -> None:
    assert not hasattr(bough, "Nonsense")
