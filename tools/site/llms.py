"""Texts for language models: `llms.txt`, `llms-full.txt`, and each page as Markdown beside its HTML."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from tools.site.navigation import Link, Section, list_links

_SUMMARY = (
    "bough runs agents whose conversations fork like git branches: a Python library, a command line and a server."
)
_LEFT_OUT = frozenset({"More"})
"""Sections that `llms-full.txt` leaves out; `llms.txt` lists them as optional."""


def write_texts(top: Section, content: Mapping[str, str], site: Path) -> None:
    """Write the texts into a built site. Source: llmstxt.org."""
    for page, text in content.items():
        target = site / page
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_text(text, "utf-8")
    (site / "llms.txt").write_text(_write_index(top), "utf-8")
    sections = [item for item in top.items if item.title not in _LEFT_OUT]
    links = [link for item in sections for link in (list_links(item) if isinstance(item, Section) else [item])]
    pages = dict.fromkeys(link.page for link in links)
    full = "\n\n".join(f"<!-- {page} -->\n{content[page].rstrip()}" for page in pages)
    (site / "llms-full.txt").write_text(full + "\n", "utf-8")


def _write_index(top: Section) -> str:
    lines = ["# bough", "", f"> {_SUMMARY}", ""]
    lines += [_write_link(item) for item in top.items if isinstance(item, Link)]
    optional: list[Link] = []
    for item in top.items:
        if isinstance(item, Link):
            continue
        if item.title in _LEFT_OUT:
            optional += list_links(item)
        else:
            lines += ["", f"## {item.title}", "", *map(_write_link, list_links(item))]
    return "\n".join([*lines, "", "## Optional", "", *map(_write_link, optional), ""])


def _write_link(link: Link) -> str:
    return f"- [{link.title}]({link.page})" + (f": {link.summary}" if link.summary else "")
