"""The tutorial as a reader follows it: from the wheel, in an empty home, each block in its order."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path
from subprocess import PIPE, STDOUT
from typing import NamedTuple

import pytest
from tests.journeys.conftest import ROOT, Person

pytestmark = [pytest.mark.slow, pytest.mark.timeout(400), pytest.mark.needs("bubblewrap", "curl")]

PAGES = sorted((ROOT / "docs" / "tutorial").glob("*.md"))
_BLOCK = re.compile(
    r"(?:^`(?P<file>[\w/.-]+)`:\n\n)?^```(?P<language>\w+)\n(?P<text>.*?)^```\n"
    r"(?:\nIt prints:\n\n```text\n(?P<printed>.*?)^```)?",
    re.MULTILINE | re.DOTALL,
)


class Block(NamedTuple):
    """A block of a page: a file to write, or commands with what they print."""

    place: str
    file: str | None
    language: str
    text: str
    printed: str | None


def read_blocks(page: Path) -> list[Block]:
    """Return the blocks of a page in their order."""
    return [
        Block(page.name, *match.group("file", "language", "text", "printed"))
        for match in _BLOCK.finditer(page.read_text())
    ]


def matches(printed: str, shown: str) -> bool:
    """Return whether an output is what a page shows. `…` stands for any text; at the end of a line also for lines."""
    pattern = re.escape(shown.strip()).replace("…", ".*")
    return re.fullmatch(pattern, printed.strip(), re.DOTALL) is not None


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The programs of an environment into which the wheel was installed, as the first page says."""
    folder = tmp_path_factory.mktemp("wheel")
    uv = Path(sys.executable).with_name("uv")
    constraints = ["--build-constraints", ROOT / "requirements-dev.txt"]
    subprocess.run([uv, "build", "-q", "--wheel", *constraints, "--out-dir", folder / "dist", ROOT], check=True)
    subprocess.run([uv, "venv", "-q", "--python", sys.executable, folder / "env"], check=True)
    (wheel,) = (folder / "dist").glob("*.whl")
    (install,) = re.findall(r"^pip install '\.(\[.*\])'$", PAGES[0].read_text(), re.MULTILINE)
    python = folder / "env" / "bin" / "python"
    pins = ["-c", ROOT / "requirements-dev.txt"]
    subprocess.run(
        [uv, "pip", "install", "-q", "--python", python, *pins, f"bough{install} @ {wheel.as_uri()}"], check=True
    )
    return python.parent


def run_commands(person: Person, commands: str, state: Path) -> str:
    """Run a block in the folder, and with the variables, that the block before it left; return what it printed."""
    script = f'. "{state}"\n{commands}\n{{ printf \'cd "%s"\\n\' "$PWD"; printf \'ID="%s"\\n\' "$ID"; }} > "{state}"\n'
    result = person.try_command(["sh", "-ec", script])
    assert result.code == 0, result
    assert "Traceback" not in result.output, result
    return result.stdout


def test_the_tutorial_works_as_written(person: Person, installed: Path, tmp_path: Path) -> None:
    person.environment["PATH"] = f"{installed}:/usr/local/bin:/usr/bin:/bin"
    state = tmp_path / "state"
    state.write_text('ID=""\n')
    project = person.folder / "trip"
    server: subprocess.Popen[str] | None = None
    port = "8000"
    try:
        for page in PAGES:
            for block in read_blocks(page):
                text = block.text.replace("8000", port)
                if block.file is not None:
                    path = project / block.file
                    path.parent.mkdir(parents=True, exist_ok=True)
                    path.write_text(text)
                elif "bough serve" in text:
                    assert block.printed is not None
                    command = ["sh", "-ec", f"exec env {text.replace('--port 8000', '--port 0')}"]
                    server = subprocess.Popen(
                        command, cwd=project, env=person.env, stdout=PIPE, stderr=STDOUT, text=True
                    )
                    assert server.stdout is not None
                    printed = "".join(server.stdout.readline() for _ in block.printed.splitlines())
                    port = printed.strip().rpartition(":")[2]
                    assert printed == block.printed.replace("8000", port)
                elif block.language == "sh":
                    printed = run_commands(person, text, state)
                    assert block.printed is None or matches(printed, block.printed), f"{block.place}: {printed}"
        assert server is not None, "the last page serves"
    finally:
        if server is not None:
            server.terminate()
            server.communicate(timeout=30)


def test_every_block_is_run_or_is_the_installation() -> None:
    blocks = [block for page in PAGES for block in read_blocks(page)]
    assert len(blocks) > 20
    assert {block.language for block in blocks if block.file is None} == {"sh", "text"}
    assert [block.place for block in blocks if block.language == "text"] == [PAGES[0].name], "which installs"


@pytest.mark.parametrize(
    ("printed", "shown", "expected"),
    [
        ("a 1 b\n", "a … b\n", True),
        ("a\nx\ny\nb\n", "a\n…\nb\n", True),
        ("a\nc\n", "a\nb\n", False),
        ("a b", "a", False),
    ],
)
def test_an_output_is_compared_with_what_is_shown(printed: str, shown: str, expected: bool) -> None:
    assert matches(printed, shown) is expected
