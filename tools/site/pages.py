"""The pages of the site: those of `docs/`, the README, the changelog and the examples, with links that work there."""

from __future__ import annotations

import json
import posixpath
import re
from collections.abc import Callable, Mapping
from pathlib import Path

ROOT = Path(__file__).parents[2]

_LINK = re.compile(r"(?<=\]\()(?!https?:|mailto:|#)([^)\s#]+)(#[^)\s]*)?(?=\))")
_LIST_ITEM = re.compile(r"\s*(?:[-*]|\d+\.) ")
_LANGUAGES = {".py": "python", ".md": "markdown", ".yaml": "yaml", ".json": "json", ".sh": "sh", ".csv": "text"}
_MAX_BYTES = 20_000
"""The largest file of an example that a page shows."""


def read_pages(root: Path) -> dict[str, str]:
    """Return the Markdown of each page by its path on the site.

    Raises:
        SystemExit: A page links to a file that is not on the site.
    """
    sources = _list_sources(root)
    folders = [*(root / "examples").rglob("*/"), root / "examples" / "api"]
    targets = {source: page for page, source in sources.items()} | {
        folder.relative_to(root).as_posix(): "examples/index.md" for folder in folders
    }
    targets |= {f"docs/pictures/{path.name}": f"pictures/{path.name}" for path in list_pictures(root)}
    targets |= {posixpath.dirname(source): page for page, source in sources.items() if page in _list_folders(root)}
    return {page: rewrite_links(_read_source(root / source), source, page, targets) for page, source in sources.items()}


def list_pictures(root: Path) -> list[Path]:
    """Return the pictures that pages show; on the site, they are in its folder `pictures`."""
    return sorted(path for path in (root / "docs" / "pictures").iterdir() if path.suffix in (".svg", ".webp"))


def _list_folders(root: Path) -> set[str]:
    """Return the pages that stand for a whole folder of examples."""
    names = ["three_agents", "workspace"]
    names += [f"{kind}/{path.name}" for kind in ("programs", "skills") for path in (root / "examples" / kind).iterdir()]
    return {f"examples/{name}/index.md" for name in names}


def _list_sources(root: Path) -> dict[str, str]:
    """Return the source file of each page. The source of a page about a folder is the folder's main file."""
    docs = {path.relative_to(root / "docs").as_posix(): path for path in sorted((root / "docs").rglob("*.md"))}
    named = {
        "index.md": "README.md",
        "documentation.md": "docs/README.md",
        "changelog.md": "CHANGELOG.md",
        "contributing.md": "AGENTS.md",
        "license.md": "LICENSE",
        "examples/index.md": "examples/README.md",
    }
    sources = named | {
        page.replace("decisions/README", "decisions/index"): path.relative_to(root).as_posix()
        for page, path in docs.items()
        if page != "README.md"
    }
    for pattern in ("api/*.py", "notebooks/*.ipynb"):
        for path in sorted((root / "examples").glob(pattern)):
            sources[path.relative_to(root).with_suffix(".md").as_posix()] = path.relative_to(root).as_posix()
    for page in sorted(_list_folders(root)):
        folder = posixpath.dirname(page)
        names = ("README.md", "SKILL.md", "config.yaml")
        main = next((name for name in names if (root / folder / name).is_file()), None)
        if main is not None:
            sources[page] = f"{folder}/{main}"
    return sources


def _read_source(path: Path) -> str:
    """Return the Markdown of a source file."""
    if path.suffix == ".py":
        return f"# {path.name}\n\n{_fence(path)}"
    if path.suffix == ".ipynb":
        return _render_notebook(path)
    if path.name in ("SKILL.md", "config.yaml") or path.parent.name == "workspace":
        return f"# {path.parent.name}\n\n" + "\n\n".join(map(_show_file, _list_files(path.parent)))
    if path.name == "LICENSE":
        return f"# License\n\n{_fence(path)}"
    text = normalize(path.read_text("utf-8"))
    if path.name == "README.md" and "examples" in path.parts and path.parent.name != "examples":
        rest = [file for file in _list_files(path.parent) if file != path]
        text += "\n\n" + "\n\n".join(map(_show_file, rest))
    return text


def _list_files(folder: Path) -> list[Path]:
    files = [path for path in sorted(folder.rglob("*")) if path.is_file() and path.suffix in _LANGUAGES]
    return [path for path in files if path.stat().st_size <= _MAX_BYTES and "__pycache__" not in path.parts]


def _show_file(path: Path) -> str:
    return f"`{path.name}`:\n\n{_fence(path)}"


def _fence(path: Path) -> str:
    """Return a code block with a file. The fence is longer than any in the file."""
    return f"`````{_LANGUAGES.get(path.suffix, 'text')}\n{path.read_text('utf-8').rstrip()}\n`````"


def _render_notebook(path: Path) -> str:
    parts: list[str] = []
    for cell in json.loads(path.read_text("utf-8"))["cells"]:
        source = "".join(cell["source"]).rstrip()
        parts.append(source if cell["cell_type"] == "markdown" else f"```python\n{source}\n```")
    text = "\n\n".join(parts)
    return text if text.startswith("# ") else f"# {path.name}\n\n{text}"


def map_prose(text: str, change: Callable[[list[str]], list[str]]) -> str:
    """Return a text with `change` applied to the lines between its code blocks."""
    result: list[str] = []
    prose: list[str] = []
    fence = ""
    for line in text.splitlines():
        marker = re.match(r"\s*(`{3,}|~{3,})", line)
        if fence:
            result.append(line)
            if marker and marker[1].startswith(fence) and not line.strip(" `~"):
                fence = ""
        elif marker:
            result += [*change(prose), line]
            prose, fence = [], marker[1]
        else:
            prose.append(line)
    return "\n".join([*result, *change(prose)]) + "\n"


def normalize(text: str) -> str:
    """Return Markdown as the site's parser reads it: an empty line before a list, four spaces before a nested one."""

    def change(lines: list[str]) -> list[str]:
        result: list[str] = []
        in_list = False
        for line in lines:
            is_item = _LIST_ITEM.match(line) is not None
            if is_item and not in_list and result and result[-1].strip():
                result.append("")
            indent = len(line) - len(line.lstrip())
            if in_list and is_item and 2 <= indent < 4:
                line = "    " + line.lstrip()
            in_list = is_item or (in_list and (indent > 0 or not line))
            result.append(line.replace("\\|", "|") if not line.startswith("|") else _keep_pipes(line))
        return result

    return map_prose(text, change)


def _keep_pipes(row: str) -> str:
    """Return a row of a table with the pipes in its code as entities, since the parser shows their backslash."""
    return re.sub(r"`[^`]*`", lambda code: code[0].replace("\\|", "|"), row)


def rewrite_links(text: str, source: str, page: str, targets: Mapping[str, str]) -> str:
    """Return a page whose links to files of the repository are links to pages of the site.

    Raises:
        SystemExit: A link leads to a file without a page.
    """

    def replace(match: re.Match[str]) -> str:
        path = posixpath.normpath(posixpath.join(posixpath.dirname(source), match[1]))
        if path not in targets:
            raise SystemExit(f"{source} links to {match[1]}, which the site does not have")
        return posixpath.relpath(targets[path], posixpath.dirname(page) or ".") + (match[2] or "")

    return map_prose(text, lambda lines: [_LINK.sub(replace, line) for line in lines])
