"""The files and commands of a page of the documentation, as a reader takes them from it."""

from __future__ import annotations

import re
from pathlib import Path

from tests.journeys.conftest import ROOT, Person, Result

_FILE = re.compile(r"^`([\w/.-]+)`:\n\n```\w+\n(.*?)^```", re.MULTILINE | re.DOTALL)
_COMMANDS = re.compile(r"^```sh\n(.*?)^```", re.MULTILINE | re.DOTALL)
_PYTHON = re.compile(r"^```python\n(.*?)^```", re.MULTILINE | re.DOTALL)


class Page:
    """A page of `docs/`, or the README."""

    def __init__(self, name: str) -> None:
        self.path: Path = ROOT / name
        self.text = self.path.read_text()

    @property
    def files(self) -> dict[str, str]:
        """The files that the page shows under their names."""
        return dict(_FILE.findall(self.text))

    @property
    def commands(self) -> list[str]:
        """The blocks of shell commands, in order."""
        return _COMMANDS.findall(self.text)

    @property
    def programs(self) -> list[str]:
        """The Python programs, in order."""
        return _PYTHON.findall(self.text)


def run_commands(person: Person, *blocks: str) -> Result:
    """Run blocks of commands in one shell that ends at the first failure, and check that there was none."""
    result = person.try_command(["sh", "-ec", "\n".join(blocks)])
    assert result.code == 0, result
    assert "Traceback" not in result.output, result
    return result
