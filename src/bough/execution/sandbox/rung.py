"""One step of the ladder: a wall of a certain strength, whether it stands on this machine, and how to run behind it."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Final, Protocol

from bough.execution.base import Isolation
from bough.execution.process.child import Launch
from bough.execution.process.identity import Identity
from bough.execution.process.workspace import Workspace
from bough.execution.request import Plan

INSIDE: Final = str(Path(__file__).parent.parent / "inside")
"""The folder of the programs that run on the other side."""


@dataclass(frozen=True, kw_only=True)
class RungReport:
    """What `probe` found out about one rung.

    Attributes:
        works: Whether a program was really run behind it just now.
        missing: What it lacks, in one sentence; empty when it works.
        install: The command that mends it; empty when there is none.
    """

    name: str
    isolation: Isolation
    works: bool
    missing: str = ""
    install: str = ""


class Rung(Protocol):
    """A way to run a plan behind a wall."""

    name: str
    isolation: Isolation

    async def probe(self) -> RungReport:
        """Find out, by running `true` behind it, whether it works here and now."""
        ...

    def identity(self, plan: Plan) -> Identity:
        """Return as whom `plan` runs behind it."""
        ...

    def launch(self, plan: Plan, workspace: Workspace) -> Launch:
        """Return the command that runs `plan` behind it; only after a probe that worked."""
        ...
