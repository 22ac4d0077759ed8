#!/usr/bin/env python3
"""Print the links in Markdown files that lead nowhere: missing files and missing anchors."""

from __future__ import annotations

import argparse
import os
import re
import sys
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from urllib.parse import unquote

SUFFIXES = {".md", ".markdown"}
FENCE = re.compile(r"^ {0,3}(`{3,}|~{3,})")
CODE_SPAN = re.compile(r"(?<!`)(`+)(?!`)(.+?)(?<!`)\1(?!`)")
TARGET = r"(<[^<>]*>|[^\s()]*(?:\([^\s()]*\)[^\s()]*)*)"
INLINE = re.compile(r"\]\(\s*" + TARGET + r"(?:\s+(?:\"[^\"]*\"|'[^']*'|\([^()]*\)))?\s*\)")
DEFINITION = re.compile(r"^ {0,3}\[([^\]^][^\]]*)\]:\s*(<[^<>]*>|\S+)")
REFERENCE = re.compile(r"(?<!\])\[([^\[\]]+)\]\[([^\[\]]*)\]")
HTML_LINK = re.compile(r"<(?:a|img)\b[^>]*?\b(?:href|src)\s*=\s*[\"']([^\"']+)[\"']", re.IGNORECASE)
HTML_ID = re.compile(r"<[a-z][^>]*?\b(?:id|name)\s*=\s*[\"']([^\"']+)[\"']", re.IGNORECASE)
HEADING = re.compile(r"^ {0,3}#{1,6}[ \t]+(.*?)(?:[ \t]+#+)?[ \t]*$")
UNDERLINE = re.compile(r"^ {0,3}(?:=+|-+)\s*$")
SCHEME = re.compile(r"^(?:[a-z][a-z0-9+.-]*:|//)", re.IGNORECASE)
MARKUP = re.compile(r"!?\[([^\]]*)\]\([^)]*\)|<[^>]+>")


@dataclass(frozen=True)
class Problem:
    """A link that leads nowhere."""

    file: Path
    line: int
    target: str
    reason: str

    def __str__(self) -> str:
        return f"{self.file}:{self.line}: {self.target}: {self.reason}"


@dataclass
class Page:
    """What a Markdown file links to, as (line, target), and what can be linked to in it."""

    links: list[tuple[int, str]] = field(default_factory=list)
    undefined: list[tuple[int, str]] = field(default_factory=list)
    anchors: set[str] = field(default_factory=set)


def prose(text: str) -> Iterator[tuple[int, str]]:
    """Yield (line number, line) outside code blocks and comments."""
    text = re.sub(r"<!--.*?-->", lambda m: "\n" * m[0].count("\n"), text, flags=re.DOTALL)
    fence = ""
    for number, line in enumerate(text.splitlines(), 1):
        mark = FENCE.match(line)
        if fence:
            if mark and mark[1].startswith(fence) and not line.strip(" `~\t"):
                fence = ""
        elif mark:
            fence = mark[1]
        else:
            yield number, line


def slug(heading: str) -> str:
    """Return the anchor of a heading: markup gone, lower case, punctuation gone, spaces to hyphens."""
    plain = MARKUP.sub(lambda m: m[1] or "", heading).replace("`", "").replace("*", "")
    kept = "".join(char for char in plain.strip().lower() if char.isalnum() or char in " -_")
    return kept.replace(" ", "-")


def read_page(path: Path) -> Page:
    """Return the links and anchors of a file. O(size)."""
    page, counts, defined = Page(), Counter[str](), {}
    references: list[tuple[int, str]] = []
    before = ""
    for number, line in prose(path.read_text("utf-8", "replace")):
        for name in headings(line, before):
            counts[name] += 1
            page.anchors.add(name if counts[name] == 1 else f"{name}-{counts[name] - 1}")
        before = line
        page.anchors.update(HTML_ID.findall(line))
        line = CODE_SPAN.sub("", line)
        if definition := DEFINITION.match(line):
            defined[label(definition[1])] = True
            page.links.append((number, definition[2]))
            continue
        page.links += [(number, target) for pattern in (INLINE, HTML_LINK) for target in pattern.findall(line)]
        references += [(number, name or text) for text, name in REFERENCE.findall(line)]
    page.undefined = [(number, name) for number, name in references if label(name) not in defined]
    return page


def headings(line: str, before: str) -> Iterator[str]:
    """Yield the anchor when `line` is a heading, or underlines the line before it."""
    if match := HEADING.match(line):
        yield slug(match[1])
    elif UNDERLINE.match(line) and before.strip() and not HEADING.match(before):
        yield slug(before)


def label(name: str) -> str:
    """Return a reference's name as it is compared: spaces as one, case folded."""
    return " ".join(name.split()).casefold()


class Checker:
    """Checks files; each page is read once. `links` and `external` count what was looked at."""

    def __init__(self) -> None:
        self.links = 0
        self.external = 0
        self._pages: dict[Path, Page] = {}

    def page(self, path: Path) -> Page:
        """Return a page, read on first use."""
        key = path.resolve()
        if key not in self._pages:
            self._pages[key] = read_page(path)
        return self._pages[key]

    def check(self, path: Path) -> Iterator[Problem]:
        """Yield the problems of one file, in the order of its lines."""
        page = self.page(path)
        found = [Problem(path, number, f"[{name}]", "reference is not defined") for number, name in page.undefined]
        for number, raw in page.links:
            if reason := self._wrong(path, raw.strip("<>")):
                found.append(Problem(path, number, raw.strip("<>"), reason))
        yield from sorted(found, key=lambda problem: problem.line)

    def _wrong(self, path: Path, target: str) -> str | None:
        self.links += 1
        if SCHEME.match(target):
            self.external += 1
            return None
        place, _, anchor = target.partition("#")
        place = unquote(place.partition("?")[0])
        if place.startswith("/"):
            return "absolute path"
        there = path.parent / place if place else path
        if not there.exists():
            return "no such file"
        if not anchor or there.is_dir() or there.suffix.lower() not in SUFFIXES:
            return None
        return None if unquote(anchor).lower() in {a.lower() for a in self.page(there).anchors} else "no such heading"


def markdown_files(path: Path) -> Iterator[Path]:
    """Yield a file itself, or the Markdown files below a folder in a stable order; hidden folders are left out."""
    if path.is_file():
        yield path
        return
    if not path.is_dir():
        raise FileNotFoundError(f"{path}: no such file or folder")
    for folder, names, files in os.walk(path):
        names[:] = sorted(name for name in names if not name.startswith(".") and name != "node_modules")
        yield from (Path(folder, name) for name in sorted(files) if Path(name).suffix.lower() in SUFFIXES)


def main(argv: list[str] | None = None) -> int:
    """Print the problems and return the exit code: 0, 1 (no such file; `--check`: a broken link), 2 (usage)."""
    parser = argparse.ArgumentParser(description="Find broken links in Markdown files.")
    parser.add_argument("paths", type=Path, nargs="*", default=[Path()], metavar="PATH", help="files and folders")
    parser.add_argument("--check", action="store_true", help="exit code 1 when a link is broken")
    args = parser.parse_args(argv)
    checker = Checker()
    try:
        files = list(dict.fromkeys(file for path in args.paths for file in markdown_files(path)))
        problems = [problem for file in files for problem in checker.check(file)]
    except OSError as error:
        print(error, file=sys.stderr)
        return 1
    for problem in problems:
        print(problem)
    print(
        f"{len(problems)} broken of {checker.links} {'link' if checker.links == 1 else 'links'}"
        f" in {len(files)} {'file' if len(files) == 1 else 'files'}, {checker.external} to other hosts not followed"
    )
    return 1 if args.check and problems else 0


if __name__ == "__main__":
    sys.exit(main())
