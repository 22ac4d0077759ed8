"""The reference of the Python API: a page for each public package, made from signatures and docstrings."""

from __future__ import annotations

import pkgutil
import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from importlib import import_module
from types import ModuleType
from typing import Any

import griffe

import bough
from bough import errors
from tools.site.pages import ROOT, normalize

_WIDTH = 100
_PRIVATE_PACKAGES = frozenset({"bough.cli", "bough.server"})
"""Packages whose interface is the command line or HTTP."""


@dataclass
class Page:
    """A page of the reference.

    Attributes:
        names: What the page documents, by the path that a program imports it from.
        links: Names that the package exports and another page documents, each with the place on that page.
    """

    package: str
    names: dict[str, griffe.Object] = field(default_factory=dict[str, griffe.Object])
    links: dict[str, str] = field(default_factory=dict[str, str])

    @property
    def path(self) -> str:
        """The path of the page on the site."""
        return f"reference/api/{self.package}.md"


def list_public_packages() -> dict[str, list[str]]:
    """Return the public names of each public package, `bough` first."""
    packages = {"bough": _read_names(bough)}
    for module in pkgutil.iter_modules(bough.__path__, "bough."):
        if module.ispkg and module.name not in _PRIVATE_PACKAGES and (names := _read_names(import_module(module.name))):
            packages[module.name] = names
    packages["bough.errors"] = ["OUTCOMES", *(kind.__name__ for kind in _list_errors(errors.BoughError))]
    testing = import_module("bough.testing")
    for module in pkgutil.iter_modules(testing.__path__, "bough.testing."):
        if module.ispkg and (names := _read_names(import_module(module.name))):
            packages[module.name] = names
    for package, names in list(packages.items()):
        for name in names:
            if isinstance(member := getattr(import_module(package), name), ModuleType):
                packages[member.__name__] = _read_names(member)
    return packages


def _read_names(module: ModuleType) -> list[str]:
    """Return the names in `__all__`; without it, the public functions and classes that the module defines."""
    names: list[str] | None = getattr(module, "__all__", None)
    if names is None and not hasattr(module, "__path__"):
        names = [
            name
            for name, value in vars(module).items()
            if not name.startswith("_") and callable(value) and value.__module__ == module.__name__
        ]
    return sorted(names or [])


def _list_errors(kind: type[errors.BoughError]) -> Iterator[type[errors.BoughError]]:
    if kind.__module__ == "bough.errors":
        yield kind
    for child in kind.__subclasses__():
        yield from _list_errors(child)


def plan_pages() -> list[Page]:
    """Return the pages, each object on exactly one of them."""
    root = griffe.load(
        "bough", search_paths=[ROOT / "src"], docstring_parser="google", resolve_aliases=True, resolve_external=False
    )
    packages = list_public_packages()
    pages = {package: Page(package) for package in packages}
    paths = dict[str, str]()
    for package, names in packages.items():
        for name in names:
            member = root[f"{package}.{name}".removeprefix("bough.")]
            target = member.final_target if isinstance(member, griffe.Alias) else member
            if target.is_module and not isinstance(getattr(import_module(package), name), ModuleType):
                target = target[name]  # a function that has the name of its module
            if target.is_module:
                continue
            path = paths.setdefault(target.path, f"{package}.{name}")  # that of `bough` itself comes first
            home = _find_page(target, name, packages)
            if path == f"{package}.{name}":
                pages[home].names[path] = target
            if home != package:
                pages[package].links[name] = f"{home}.md#{path}"
    return list(pages.values())


def _find_page(target: griffe.Object, name: str, packages: dict[str, list[str]]) -> str:
    """Return the package on whose page an object is: one that exports it, else the one that contains it."""
    exporting = [package for package, names in packages.items() if name in names and package != "bough"]
    inside = [package for package in packages if target.path.startswith(f"{package}.") and package != "bough"]
    return next((package for package in exporting if package in inside), (*exporting, *inside[-1:], "bough")[0])


def render_api() -> dict[str, str]:
    """Return the Markdown of each page by its path on the site."""
    return {page.path: _render_page(page) for page in plan_pages()}


def _render_page(page: Page) -> str:
    module = import_module(page.package)
    parts = [f"# {page.package}", (module.__doc__ or "").strip()]
    if page.links:
        rows = [
            f"| [`{name}`]({place}) | `{place.partition('.md#')[0]}` |" for name, place in sorted(page.links.items())
        ]
        table = "\n".join(["| name | page |", "|---|---|", *rows])
        parts += ["These names are documented with the package that they belong to:", table]
    for path, target in sorted(page.names.items(), key=lambda entry: entry[0].rpartition(".")[2].lower()):
        parts += _render_object(path, target)
    return normalize("\n\n".join(parts))


def _render_object(path: str, target: griffe.Object) -> Iterator[str]:
    """Yield the heading, the signature and the documentation of a public name, and of its members if it is a class."""
    package, _, name = path.rpartition(".")
    yield f"## {name} {{#{path}}}"
    if isinstance(target, griffe.Class):
        signature = _wrap(f"class {name}", target.signature().removeprefix("class ").removeprefix(target.name))
    elif isinstance(target, griffe.Function):
        signature = _render_function(target, name)
    else:
        signature = _render_value(name, target)
    yield f"```python\nfrom {package} import {name}\n\n{signature}\n```"
    yield from _render_docstring(target)
    if isinstance(target, griffe.Class):
        yield from _render_members(path, target)


def _render_members(path: str, kind: griffe.Class) -> Iterator[str]:
    members = {name: member for name, member in _list_members(kind).items() if not name.startswith(("_", "test_"))}
    described = _describe_attributes(kind)
    rows = [
        f"| `{name}` | {_code(member.annotation)} | {described.get(name) or _summarize(member)} |"
        for name, member in members.items()
        if isinstance(member, griffe.Attribute) and name != "model_config"
    ]
    if rows:
        yield "\n".join(["| attribute | type | meaning |", "|---|---|---|", *rows])
    for name, member in members.items():
        if isinstance(member, griffe.Function):
            yield f"### {kind.name}.{name} {{#{path}.{name}}}"
            yield f"```python\n{_render_function(member, name)}\n```"
            yield from _render_docstring(member)


def _list_members(kind: griffe.Class) -> dict[str, griffe.Object]:
    """Return the members of a class, then those that it inherits from other classes of bough."""
    return {
        name: member.final_target if isinstance(member, griffe.Alias) else member
        for name, member in (kind.members | kind.inherited_members).items()
    }


def _describe_attributes(kind: griffe.Class) -> dict[str, str]:
    """Return what the docstrings of a class, and of the classes it inherits from, say about attributes."""
    described = dict[str, str]()
    for base in (kind, *kind.mro()):
        for section in base.docstring.parsed if base.docstring else ():
            if isinstance(section, griffe.DocstringSectionAttributes):
                for attribute in section.value:
                    described.setdefault(attribute.name, _one_line(attribute.description))
    return described


def _render_options(function: griffe.Function) -> Iterator[str]:
    """Yield the fields of `**options: Unpack[Fields]` as a list."""
    for parameter in function.parameters:
        if match := re.fullmatch(r"Unpack\[(\w+)\]", str(parameter.annotation)):
            fields = function.modules_collection[function.resolve(match[1])]
            kind = fields.final_target if isinstance(fields, griffe.Alias) else fields
            described = _describe_attributes(kind) if isinstance(kind, griffe.Class) else {}
            values = [(f"`{name}`", described.get(name, "")) for name in kind.members if not name.startswith("_")]
            yield _list_values(f"Options in `**{parameter.name}`", values)


def _render_docstring(target: griffe.Object) -> Iterator[str]:
    for section in target.docstring.parsed if target.docstring else ():
        match section:
            case griffe.DocstringSectionText(value=text):
                yield text
            case griffe.DocstringSectionParameters(value=parameters):
                yield _list_values("Arguments", [(f"`{item.name}`", item.description) for item in parameters])
            case griffe.DocstringSectionReturns(value=values) | griffe.DocstringSectionYields(value=values):
                yield _list_values(section.kind.value.title(), [("", item.description) for item in values])
            case griffe.DocstringSectionRaises(value=raises):
                yield _list_values("Raises", [(_code(item.annotation), item.description) for item in raises])
            case griffe.DocstringSectionAdmonition(value=admonition):
                yield f"{section.title or admonition.kind}: {admonition.contents}"
            case griffe.DocstringSectionExamples(value=examples):
                yield "\n\n".join(
                    text if kind.value == "text" else f"```python\n{text}\n```" for kind, text in examples
                )
            case griffe.DocstringSectionAttributes():
                pass  # in the table of the class
            case _:
                raise SystemExit(f"{target.path}: the section {section.kind.value} of the docstring is not rendered")
    if isinstance(target, griffe.Function):
        yield from _render_options(target)


def _list_values(title: str, values: list[tuple[str, str]]) -> str:
    lines = [f"- {': '.join(filter(None, (name, _one_line(text))))}" for name, text in values]
    return "\n".join([f"**{title}**", "", *lines])


def _summarize(member: griffe.Object) -> str:
    return _one_line(member.docstring.value.partition("\n\n")[0]) if member.docstring else ""


def _one_line(text: str) -> str:
    return " ".join(text.split()).replace("|", "\\|")


def _code(annotation: Any) -> str:
    return f"`{annotation}`".replace("|", "\\|") if annotation else ""


def _render_value(name: str, target: griffe.Object) -> str:
    if isinstance(target, griffe.Attribute):
        value = str(target.value) if target.value is not None else ""
        annotation = f": {target.annotation}" if target.annotation else ""
        return f"{name}{annotation}" + (f" = {value}" if value and len(value) <= _WIDTH else "")
    return name


def _render_function(function: griffe.Function, name: str) -> str:
    """Return the signature of a function with its kind."""
    decorators = "".join(
        f"@{decorator.value}\n"
        for decorator in function.decorators
        if str(decorator.value) in ("classmethod", "staticmethod", "property")
    )
    prefix = "async def " if "async" in function.labels else "def "
    return decorators + _wrap(f"{prefix}{name}", function.signature(name=name).removeprefix(name))


def _wrap(head: str, signature: str) -> str:
    """Return a signature with a parameter a line if it is too long for one line."""
    line = head + signature
    if len(line) <= _WIDTH or not signature.startswith("("):
        return line
    parameters, end = _split_parameters(signature)
    return head + "(\n" + "".join(f"    {parameter},\n" for parameter in parameters) + end


def _split_parameters(signature: str) -> tuple[list[str], str]:
    """Return the parameters of a signature, and what follows them."""
    parameters, depth, start, quote = list[str](), 0, 1, ""
    for position, character in enumerate(signature):
        if quote:
            quote = "" if character == quote else quote
        elif character in "'\"":
            quote = character
        elif character in "([{":
            depth += 1
        elif character in ")]}":
            depth -= 1
            if depth == 0:
                return [*parameters, signature[start:position].strip()], signature[position:]
        elif character == "," and depth == 1:
            parameters.append(signature[start:position].strip())
            start = position + 1
    raise ValueError(f"the signature does not end: {signature}")
