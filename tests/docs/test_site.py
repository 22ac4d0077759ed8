"""The documentation site: complete, without foreign addresses, and usable by everybody."""

from __future__ import annotations

import re
import subprocess
import sys
import threading
from collections.abc import Iterator
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from importlib import import_module
from pathlib import Path

import pytest
from tests.evals.report.chromium import browser_page
from tools.site import api, commands, pages

from bough.cli.help import SUMMARIES, list_commands

ROOT = Path(__file__).parents[2]
KINDS = (
    "index.html",
    "how-to/serve.html",
    "concepts/isolation.html",
    "reference/performance.html",
    "reference/api/bough.conversation.html",
    "reference/commands/conv.html",
    "examples/skills/csv-profile/index.html",
    "404.html",
)
"""A page of each kind: prose, code, tables, both references, an example, and what is shown for an unknown page."""


SEARCH = """
new Promise(resolve => {
  const find = root => [...root.querySelectorAll("*")].flatMap(
    node => node.shadowRoot ? [node, ...find(node.shadowRoot)] : [node]);
  const look = () => {
    const nodes = find(document);
    const input = nodes.find(node => node.matches("input[type=text], input[type=search]") && node.offsetParent);
    if (input && !input.value) {
      Object.getOwnPropertyDescriptor(HTMLInputElement.prototype, "value").set.call(input, "isolation");
      input.dispatchEvent(new Event("input", {bubbles: true, composed: true}));
    }
    const links = nodes.filter(node => node.matches("a") && /isolation\\.html/.test(node.href) && node.offsetParent);
    const hit = links.find(link => !link.closest("nav, article"));
    if (hit) resolve(hit.textContent); else requestAnimationFrame(look);
  };
  look();
})
"""
"""Searches for a word, and returns the text of the first result."""


class Handler(SimpleHTTPRequestHandler):
    def log_message(self, format: str, *args: object) -> None:
        pass


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The site, built once."""
    folder = tmp_path_factory.mktemp("site") / "site"
    done = subprocess.run([sys.executable, "-m", "tools.site", folder], cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    return folder


@pytest.fixture(scope="module")
def address(site: Path) -> Iterator[str]:
    """The address of a server of the site."""
    with ThreadingHTTPServer(("127.0.0.1", 0), partial(Handler, directory=str(site))) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()
        thread.join()


def test_every_command_option_and_example_is_in_the_reference_of_commands() -> None:
    content = commands.render_commands()
    names = {f"reference/commands/{name}.md" for group in SUMMARIES.values() for name in group}
    assert content.keys() == names | {"reference/commands/index.md"}
    verbs: dict[str, list[str]] = list_commands().data["commands"]
    for name, own in verbs.items():
        headings = re.findall(r"^#+ bough (.*)$", content[f"reference/commands/{name}.md"], re.MULTILINE)
        assert headings == [name, *(f"{name} {verb}" for verb in own)]
    run = content["reference/commands/run.md"]
    help = subprocess.run([sys.executable, "-m", "bough.cli.main", "run", "--help"], capture_output=True, text=True)
    options = set(re.findall(r"^ +(?:-\w, )?(--[\w-]+)", help.stdout, re.MULTILINE))
    assert len(options) > 20
    listed = set(re.findall(r"--[\w-]+", run))
    assert options - listed <= {"--home", "--store", "--json", "--help"}, "which are on the first page"
    assert 'bough run "profile sales.csv"' in run


@pytest.mark.slow
def test_every_public_name_has_one_place_in_the_reference_of_the_api() -> None:
    content = api.render_api()
    anchors = [anchor for text in content.values() for anchor in re.findall(r"^## .* \{#(.*)\}$", text, re.MULTILINE)]
    assert len(anchors) == len(set(anchors))
    packages = api.list_public_packages()
    assert {"bough", "bough.conversation", "bough.errors", "bough.testing", "bough.testing.store"} <= packages.keys()
    for package, names in packages.items():
        text = content[f"reference/api/{package}.md"]
        for name in names:
            assert (
                re.search(rf"^## {name} \{{#", text, re.MULTILINE)
                or f"[`{name}`](" in text
                or f"{package}.{name}" in packages
            ), f"{package}.{name}"
    for name in import_module("bough").__all__:
        assert f"bough.{name}" in anchors, name
    fork = content["reference/api/bough.conversation.md"].partition("### AsyncConversation.fork {#")[2]
    assert "- `pending`" in fork.partition("\n## ")[0], "the fields of `**options` are listed"


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("Words:\n- one\n- two", "Words:\n\n- one\n- two\n"),
        ("- one\n  - nested", "- one\n    - nested\n"),
        ("```text\nWords:\n- one\n```", "```text\nWords:\n- one\n```\n"),
        ("| `a\\|b` | c\\|d |", "| `a|b` | c\\|d |\n"),
    ],
)
def test_markdown_is_written_as_the_parser_of_the_site_reads_it(text: str, expected: str) -> None:
    assert pages.normalize(text) == expected


def test_a_link_to_a_file_that_the_site_does_not_have_is_an_error() -> None:
    targets = {"docs/a.md": "a.md", "README.md": "index.md"}
    text = "[a](docs/a.md#x) [b](https://example.com) `[c](none.md)`"
    with pytest.raises(SystemExit, match=r"none\.md"):
        pages.rewrite_links(text, "README.md", "deep/index.md", targets)
    moved = pages.rewrite_links("[a](docs/a.md#x) [b](https://example.com)", "README.md", "deep/index.md", targets)
    assert moved == "[a](../a.md#x) [b](https://example.com)\n"


@pytest.mark.slow
def test_the_site_has_every_page_and_loads_nothing_from_elsewhere(site: Path) -> None:
    for page in (ROOT / "docs").rglob("*.md"):
        name = page.relative_to(ROOT / "docs").as_posix().replace("decisions/README", "decisions/index")
        built = site / name.replace("README.md", "documentation.md").replace(".md", ".html")
        assert built.is_file(), name
    for file in site.rglob("*"):
        if file.suffix in (".html", ".css"):
            text = file.read_text("utf-8")
            loads = re.findall(
                r"(?:<(?:script|img|iframe|source)\b[^>]*\bsrc|<link\b[^>]*\bhref)=\"?(https?:)?//", text
            )
            assert not loads and not re.search(r"url\([\"']?(https?:)?//|@import", text), file
    assert str(ROOT) not in "".join(file.read_text("utf-8") for file in site.rglob("*.md"))


@pytest.mark.slow
def test_the_texts_for_language_models_name_pages_that_are_there(site: Path) -> None:
    text = (site / "llms.txt").read_text("utf-8")
    links = re.findall(r"^- \[[^\]]+\]\(([^)]+)\)", text, re.MULTILINE)
    assert len(links) > 80
    assert [link for link in links if not (site / link).is_file()] == []
    full = (site / "llms-full.txt").read_text("utf-8")
    assert "# Errors by code" in full and "class AsyncConversation" in full


@pytest.mark.slow
@pytest.mark.needs("chromium")
def test_pages_pass_axe_make_no_foreign_request_and_are_found(address: str, tmp_path: Path) -> None:
    with browser_page(tmp_path / "browser") as page:
        for kind in KINDS:
            for dark in (False, True):
                page.open(f"{address}/{kind}", dark=dark)
                assert page.evaluate("document.body.dataset.mdColorScheme") == ("slate" if dark else "default")
                assert page.find_violations() == [], kind
                foreign = [request for request in page.requests if not request.startswith((address, "data:"))]
                assert foreign == [], kind
        page.call("Emulation.setDeviceMetricsOverride", width=400, height=800, deviceScaleFactor=1, mobile=True)
        page.open(f"{address}/concepts/isolation.html")
        assert page.evaluate("document.documentElement.scrollWidth") == 400, "a wide table scrolls itself"
        assert page.complaints == []
        page.call("Emulation.clearDeviceMetricsOverride")
        page.open(f"{address}/index.html")
        page.evaluate("document.querySelector('.md-search__button').click(); true")
        assert "Isolation" in page.evaluate(SEARCH)
