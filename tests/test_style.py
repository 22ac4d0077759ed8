"""Habits of the code, read from its syntax: what a name stands for, where state is born, what imports which library.

`style_exceptions.toml` lists what is older than its rule, and gets shorter only: a line that nothing needs any more
fails. What is added to it is names that a library calls, and nothing here. Its figures only get better.
"""

from __future__ import annotations

import ast
import io
import re
import tokenize
import tomllib
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from vulture import Vulture  # pyright: ignore[reportMissingTypeStubs]

ROOT = Path(__file__).parents[1]
PACKAGE = ROOT / "src" / "bough"

LIBRARIES = {
    "a2a": ("connect/a2a", "server/"),
    "acp": ("server/acp/",),
    "fastapi": ("server/", "web/"),
    "mcp": ("connect/", "server/"),
    "procrastinate": ("tasks/dispatch/procrastinate.py",),
    "prompt_toolkit": ("cli/",),
    "pydantic_ai": (
        "agents/", "connect/", "conversation/", "evals/", "orchestrator/", "server/", "tasks/", "testing/", "web/",
    ),
    "pygit2": ("files/",),
    "rich": ("cli/",),
    "typer": ("cli/",),
}  # fmt: skip
"""Where a library may be imported, function-level and type-only imports included."""

IRREGULAR = frozenset(
    {
        "begun", "born", "bound", "bought", "broken", "brought", "built", "chosen", "done", "drawn", "driven", "fallen",
        "felt", "forgotten", "found", "given", "gone", "grown", "held", "hidden", "kept", "known", "laid", "left",
        "lent", "lost", "made", "meant", "met", "paid", "said", "seen", "sent", "shown", "sold", "spent", "sworn",
        "taken", "thrown", "told", "understood", "withdrawn", "won", "worn", "written",
    }
)  # fmt: skip
VAGUE = frozenset(
    {
        "apart", "asked", "beside", "drafted", "each", "found", "given", "heard", "held", "kept", "known", "left",
        "made", "most", "named", "noted", "rest", "said", "seen", "settled", "shown", "taken", "there", "told",
        "wanted", "what",
    }
)  # fmt: skip
PRAGMA = re.compile(r"#\s*(?:!|fmt:|noqa|pragma|pyright|ruff|type:)")
NOT_PARTICIPLES = frozenset({"embed", "exceed", "feed", "need", "proceed", "seed", "shed", "speed"})


@dataclass(frozen=True)
class Module:
    """A module of the package: its path below it, and everything in its syntax tree."""

    path: str
    nodes: tuple[ast.AST, ...]

    @property
    def name(self) -> str:
        """Dotted, without the package: `conversation.run.loop`."""
        return self.path.removesuffix(".py").removesuffix("/__init__").replace("/", ".")


@cache
def modules() -> tuple[Module, ...]:
    files = sorted(PACKAGE.rglob("*.py"))
    assert len(files) > 100
    return tuple(
        Module(str(file.relative_to(PACKAGE)), tuple(ast.walk(ast.parse(file.read_text("utf-8"))))) for file in files
    )


@cache
def exceptions() -> dict[str, Any]:
    return tomllib.loads((ROOT / "tests" / "style_exceptions.toml").read_text("utf-8"))


def classes() -> Iterator[tuple[Module, ast.ClassDef]]:
    for module in modules():
        for node in module.nodes:
            if isinstance(node, ast.ClassDef):
                yield module, node


@cache
def doubled_classes() -> set[str]:
    counts = Counter(node.name for _, node in classes() if not node.name.startswith("_"))
    return {name for name, count in counts.items() if count > 1}


@cache
def participles() -> set[str]:
    found = set[str]()
    for module in modules():
        for node in module.nodes:
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and is_participle(node):
                found.add(node.name)
    return found


def is_participle(function: ast.FunctionDef | ast.AsyncFunctionDef) -> bool:
    """Whether a function's name begins with a participle, and it is neither a property nor a predicate."""
    word = function.name.strip("_").partition("_")[0].lower()
    decorators = {ast.unparse(decorator).rpartition(".")[2] for decorator in function.decorator_list}
    predicate = function.returns is not None and ast.unparse(function.returns) == "bool"
    if decorators & {"property", "cached_property", "setter"} or predicate or word in NOT_PARTICIPLES:
        return False
    return (word.endswith("ed") and len(word) > 3) or word in IRREGULAR


def attributes_of(node: ast.ClassDef) -> tuple[set[str], dict[str, str]]:
    """Return the attributes that a class declares, and those that its other methods assign to, with the method."""
    declared, assigned = set[str](), dict[str, str]()
    for part in node.body:
        match part:
            case ast.AnnAssign(target=ast.Name(id=name)):
                declared.add(name)
            case ast.Assign(targets=targets):
                declared |= {target.id for target in targets if isinstance(target, ast.Name)}
            case ast.FunctionDef() | ast.AsyncFunctionDef():
                own = set(assignments(part))
                if part.name in ("__init__", "__post_init__", "__new__"):
                    declared |= own
                else:
                    declared |= {part.name} if part.decorator_list else set()
                    assigned |= dict.fromkeys(own, part.name)
            case _:
                pass
    return declared, assigned


def assignments(function: ast.FunctionDef | ast.AsyncFunctionDef) -> Iterator[str]:
    """Yield the names that a method assigns to on its first argument."""
    me = function.args.args[0].arg if function.args.args else ""
    for node in ast.walk(function):
        match node:
            case ast.Attribute(value=ast.Name(id=name), attr=attribute, ctx=ast.Store()) if name == me:
                yield attribute
            case _:
                pass


@cache
def late_attributes() -> set[str]:
    """Attributes that no `__init__` and no class body knows, neither the class's own nor one of its bases'."""
    declared, bases, assigned = defaultdict[str, set[str]](set), defaultdict[str, set[str]](set), dict[str, set[str]]()
    for _, node in classes():
        own, late = attributes_of(node)
        declared[node.name] |= own
        assigned[node.name] = set(late)
        bases[node.name] |= {ast.unparse(base).rpartition(".")[2].partition("[")[0] for base in node.bases}

    def known(name: str) -> set[str]:
        return declared[name].union(*(known(base) for base in bases[name] if base != name))

    return {f"{name}.{late}" for name, names in assigned.items() for late in names - known(name)}


@cache
def nested_conditions() -> set[str]:
    found = set[str]()
    for module in modules():
        for function in module.nodes:
            if not isinstance(function, ast.FunctionDef | ast.AsyncFunctionDef):
                continue
            for node in ast.walk(function):
                inner = ast.iter_child_nodes(node) if isinstance(node, ast.IfExp) else ()
                if any(isinstance(each, ast.IfExp) for each in inner):
                    found.add(f"{module.name}.{function.name}")
    return found


@cache
def unused_names() -> set[str]:
    """Functions and classes that neither the package nor a test, a benchmark or an example uses, as vulture sees it.

    Fields are left out: models of a format have many that only their reader knows.
    """
    found = Vulture(
        ignore_decorators=["@*.command*", "@*.get", "@*.post", "@*.put", "@*.patch", "@*.delete", "@*.websocket"]
    )
    found.scavenge([str(ROOT / folder) for folder in ("src", "tests", "benchmarks", "examples")])  # pyright: ignore[reportUnknownMemberType]
    return {
        item.name
        for item in found.get_unused_code(min_confidence=60)
        if item.typ not in ("attribute", "import", "variable") and item.filename.is_relative_to(PACKAGE)
    }


RULES: dict[str, tuple[Callable[[], set[str]], str]] = {
    "doubled_classes": (doubled_classes, "one class name is one concept: give the newer one a name of its own"),
    "participles": (participles, "name a function by a verb with its object (`list_entries`, not `listed`)"),
    "late_attributes": (late_attributes, "an object is complete after `__init__`: declare the attribute there"),
    "unused_names": (
        unused_names,
        "delete it; tests/style_exceptions.toml lists what a library calls",
    ),
    "nested_conditions": (nested_conditions, "one decision a statement: write `if` and `elif`"),
}


@pytest.mark.parametrize("rule", RULES)
def test_nothing_new_breaks_a_habit(rule: str) -> None:
    look, advice = RULES[rule]
    new = sorted(look() - set(exceptions()[rule]))
    assert not new, f"{advice}: {', '.join(new)} (what cannot be so yet: tests/style_exceptions.toml)"


@pytest.mark.parametrize("rule", RULES)
def test_every_exception_is_needed(rule: str) -> None:
    listed = exceptions()[rule]
    assert listed == sorted(set(listed)), "sorted, each once"
    gone = sorted(set(listed) - RULES[rule][0]())
    assert not gone, f"remove from tests/style_exceptions.toml: {', '.join(gone)}"


def test_a_library_is_imported_only_where_it_belongs() -> None:
    elsewhere = [
        f"{module.path}: {library} belongs to {', '.join(LIBRARIES[library])}"
        for module in modules()
        for node in module.nodes
        for library in imported(node) & LIBRARIES.keys()
        if not module.path.startswith(LIBRARIES[library])
    ]
    assert not elsewhere, "\n".join(elsewhere)


@cache
def vague_names() -> float:
    """Percentage of assigned names and parameters, underscores stripped, that say nothing of what they hold."""
    names = [
        name.strip("_") for module in modules() for node in module.nodes if (name := assigned_name(node)) is not None
    ]
    return 100 * sum(name in VAGUE for name in names) / len(names)


def assigned_name(node: ast.AST) -> str | None:
    match node:
        case ast.arg(arg=name) | ast.Name(id=name, ctx=ast.Store()):
            return name
        case _:
            return None


@cache
def comments() -> float:
    """Comments in a thousand lines, without those that a tool reads."""
    count = sum(
        token.type == tokenize.COMMENT and not PRAGMA.match(token.string)
        for source in sources()
        for token in tokenize.generate_tokens(io.StringIO(source).readline)
    )
    return 1000 * count / lines()


@cache
def imports() -> float:
    """Percentage of lines that belong to an import."""
    count = sum(
        (node.end_lineno or node.lineno) - node.lineno + 1
        for module in modules()
        for node in module.nodes
        if isinstance(node, ast.Import | ast.ImportFrom)
    )
    return 100 * count / lines()


@cache
def small_modules() -> float:
    """Modules of fewer than 60 lines, without `__init__`."""
    return sum(
        source.count("\n") < 60 and not module.path.endswith("__init__.py")
        for module, source in zip(modules(), sources(), strict=True)
    )


@cache
def sources() -> tuple[str, ...]:
    return tuple((PACKAGE / module.path).read_text("utf-8") for module in modules())


def lines() -> int:
    return sum(source.count("\n") for source in sources())


FIGURES: dict[str, tuple[Callable[[], float], bool]] = {
    "vague_names": (vague_names, False),
    "comments": (comments, True),
    "imports": (imports, False),
    "small_modules": (small_modules, False),
}
"""How each figure of `style_exceptions.toml` is counted, and whether more is better."""

FOLLOWS = 0.05
"""How much better a figure may be than its bound, as a share, before the bound has to follow."""


@pytest.mark.parametrize("name", FIGURES)
def test_no_figure_gets_worse(name: str) -> None:
    count, more_is_better = FIGURES[name]
    bound, figure = exceptions()["figures"][name], round(count(), 1)
    worse = figure < bound if more_is_better else figure > bound
    assert not worse, f"{figure}, it was {bound}"
    assert abs(figure - bound) <= FOLLOWS * bound, f"better: write {figure} into tests/style_exceptions.toml"


def imported(node: ast.AST) -> set[str]:
    """Return the top-level packages that a statement imports."""
    match node:
        case ast.Import(names=names):
            return {alias.name.partition(".")[0] for alias in names}
        case ast.ImportFrom(module=str(module), level=0):
            return {module.partition(".")[0]}
        case _:
            return set()
