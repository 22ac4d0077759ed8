"""One step of the ladder: a sandbox of a certain strength, whether it works on this machine, and how to run in it."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Protocol, Self

from bough.execution.base import Isolation
from bough.execution.process.child import Launch
from bough.execution.process.identity import Identity
from bough.execution.process.workspace import Workspace
from bough.execution.request import Plan

INSIDE: Final = str(Path(__file__).parent.parent / "inside")
"""The folder of the programs that run on the other side."""

FIRST: Final = "import marshal\nexec(marshal.loads(open({!r}, 'rb').read()))"
"""How the first process starts from compiled code, in a file or a descriptor."""

PREPARE: Final = """
import marshal, site, sys
with open(sys.argv[1], 'rb') if sys.argv[1:] else sys.stdin.buffer as source:
    compiled = marshal.dumps(compile(source.read(), 'init.py', 'exec'))
count = len(sys.path)
site.addsitepackages(site.removeduppaths())
sys.stdout.buffer.write(b'%d ' % len(compiled) + compiled + '\\0'.join(sys.path[count:]).encode())
"""
"""Compiles `init.py`, and finds out where packages are: both take time that is saved in every run."""


@dataclass(frozen=True)
class Preparation:
    """What `PREPARE` found out in a sandbox.

    Attributes:
        init: The compiled `init.py`, for the interpreter that runs there.
        site: The folders of packages that it would add.
    """

    init: bytes = b""
    site: tuple[str, ...] = ()

    @classmethod
    def parse(cls, output: bytes) -> Self:
        """Read what `PREPARE` wrote.

        Raises:
            ValueError: It is something else.
        """
        size, _, rest = output.partition(b" ")
        return cls(rest[: int(size)], tuple(os.fsdecode(path) for path in rest[int(size) :].split(b"\0") if path))


@dataclass(frozen=True, kw_only=True)
class RungReport:
    """What `probe` found out about one rung.

    Attributes:
        works: Whether a program was really run behind it just now.
        missing: What it lacks, in one sentence; empty when it works.
        install: The command that fixes it; empty when there is none.
        gaps: What it does not keep of the promises in `docs/concepts/isolation.md`, here and for this user.
    """

    name: str
    isolation: Isolation
    works: bool
    missing: str = ""
    install: str = ""
    gaps: tuple[str, ...] = ()


class Rung(Protocol):
    """A way to run a plan in a sandbox."""

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
