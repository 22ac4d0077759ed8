"""The navigation of the site, which follows the tables of `docs/README.md`, and the configuration of Zensical."""

from __future__ import annotations

import posixpath
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

import yaml


class Link(NamedTuple):
    """A page in the navigation."""

    title: str
    page: str
    summary: str = ""


class Section(NamedTuple):
    """A part of the navigation: pages, and sections of its own."""

    title: str
    items: list[Link | Section]


_HEADING = re.compile(r"^## (.*)$")
_GROUP = re.compile(r"^(\w[\w ]*):$")
_ROW = re.compile(r"^\| (.*) \|$")
_LINK = re.compile(r"\[([^\]]+)\]\(([^)#]+)\)")


def read_navigation(root: Path, content: Mapping[str, str]) -> Section:
    """Return the navigation: the sections of `docs/README.md`, with the pages that are made from the program.

    Raises:
        SystemExit: A page of `docs/` is in no section.
    """
    top = Section("bough", [Link("Home", "index.md", "what bough is, and how to install it")])
    section = group = top
    for line in (root / "docs" / "README.md").read_text("utf-8").splitlines():
        if heading := _HEADING.match(line):
            section = group = Section(heading[1], [])
            top.items.append(section)
        elif name := _GROUP.match(line):
            group = Section(name[1], [])
            section.items.append(group)
        elif link := _LINK.search(line):
            page = _find_page(link[2])
            if page != "index.md":
                group.items.append(Link(link[1], page, _summarize(line, link[0])))
    reference = next(item for item in top.items if isinstance(item, Section) and item.title == "Reference")
    reference.items[:0] = [_make_section("Commands", "reference/commands/", content)]
    reference.items[1:1] = [_make_section("Python API", "reference/api/", content)]
    examples = [page for page in content if page.startswith("examples/") and page != "examples/index.md"]
    decisions = [page for page in content if page.startswith("decisions/") and page != "decisions/index.md"]
    more: list[Link | Section] = [
        Section("Examples", [Link("All examples", "examples/index.md"), *_list_links(sorted(examples), content)]),
        Section("Decisions", [Link("All decisions", "decisions/index.md"), *_list_links(sorted(decisions), content)]),
        Link("Working on bough", "contributing.md"),
        Link("License", "license.md"),
    ]
    top.items.append(Section("More", more))
    _require_all(top, content)
    return top


def _find_page(target: str) -> str:
    """Return the page of a link in `docs/README.md`."""
    named = {
        "../README.md": "index.md",
        "../CHANGELOG.md": "changelog.md",
        "../examples/README.md": "examples/index.md",
        "decisions/README.md": "decisions/index.md",
    }
    return named.get(target, posixpath.normpath(target))


def _summarize(line: str, link: str) -> str:
    """Return what a row of a table, or an item of a list, says of its link."""
    if row := _ROW.match(line):
        return next((cell.strip() for cell in row[1].split(" | ") if link not in cell), "")
    return line.partition(link)[2].lstrip(": ").rstrip(".")


def _make_section(title: str, folder: str, content: Mapping[str, str]) -> Section:
    return Section(title, _list_links([page for page in content if page.startswith(folder)], content))


def _list_links(pages: list[str], content: Mapping[str, str]) -> list[Link | Section]:
    return [Link(_read_title(content[page]), page) for page in pages]


def _read_title(text: str) -> str:
    return text.partition("\n")[0].removeprefix("# ").replace("`", "")


def list_links(section: Section) -> list[Link]:
    """Return all links of a section and of the sections in it, in order."""
    return [link for item in section.items for link in (list_links(item) if isinstance(item, Section) else [item])]


def _require_all(top: Section, content: Mapping[str, str]) -> None:
    missing = content.keys() - {link.page for link in list_links(top)} - {"documentation.md"}
    if missing:
        raise SystemExit(f"docs/README.md links no page of: {', '.join(sorted(missing))}")


def write_configuration(top: Section) -> str:
    """Return the configuration, which MkDocs with the theme Material reads too."""
    configuration = yaml.safe_load(Path(__file__).with_name("mkdocs.yml").read_text("utf-8"))
    return yaml.safe_dump(configuration | {"nav": _convert(top)}, sort_keys=False, allow_unicode=True)


def _convert(section: Section) -> list[dict[str, Any]]:
    return [{item.title: _convert(item) if isinstance(item, Section) else item.page} for item in section.items]
