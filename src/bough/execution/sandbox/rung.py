"""One step of the ladder: a sandbox of a certain strength, whether it works on this machine, and how to run in it."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Protocol, Self

from bough.execution.base import Isolation
from bough.execution.gaps import Condition
from bough.execution.process.cgroup import usable_hierarchy
from bough.execution.process.child import Launch
from bough.execution.process.identity import Identity
from bough.execution.process.workspace import Workspace
from bough.execution.request import Plan

INSIDE: Final = str(Path(__file__).parent.parent / "inside")
"""The folder of the programs that run on the other side."""

FIRST_SOURCES: Final = ("program.py", "init.py")
"""The files of `INSIDE` that the first process is made of, in the order in which one needs the other."""

FIRST: Final = """
import marshal, sys
compiled, main = marshal.loads(open({!r}, 'rb').read())
sys.modules['program'] = module = type(sys)('program')
exec(compiled, module.__dict__)
exec(main)
"""
"""How the first process starts from compiled code, in a file or a descriptor."""

PREPARE: Final = """
import marshal, site, sys
if sys.argv[1:]:
    sources = [open(path, 'rb').read() for path in sys.argv[1:]]
else:
    sources = sys.stdin.buffer.read().split(b'\\0')
names = 'program.py', 'init.py'
compiled = marshal.dumps([compile(source, name, 'exec') for source, name in zip(sources, names)])
count = len(sys.path)
site.addsitepackages(site.removeduppaths())
sys.stdout.buffer.write(b'%d ' % len(compiled) + compiled + '\\0'.join(sys.path[count:]).encode())
"""
"""Compiles the files that its arguments name, or that its input holds with a zero byte between them, and finds out
where packages are: both take time that is saved in every run.
"""


def read_first_sources() -> bytes:
    """Return the input of `PREPARE`, for a sandbox that shows no file of bough's."""
    return b"\0".join(Path(INSIDE, name).read_bytes() for name in FIRST_SOURCES)


@dataclass(frozen=True)
class Preparation:
    """What `PREPARE` found out in a sandbox.

    Attributes:
        code: The compiled files of `FIRST_SOURCES`, for the interpreter that runs there.
        site: The folders of packages that it would add.
    """

    code: bytes = b""
    site: tuple[str, ...] = ()

    @classmethod
    def parse(cls, output: bytes) -> Self:
        """Read what `PREPARE` wrote.

        Raises:
            ValueError: It is something else.
        """
        size, _, body = output.partition(b" ")
        return cls(body[: int(size)], tuple(os.fsdecode(path) for path in body[int(size) :].split(b"\0") if path))


def find_conditions(*, mounts: bool) -> set[Condition]:
    """Return which conditions of gaps this machine meets. Blocks.

    Args:
        mounts: Whether the rung can make mounts of its own.
    """
    conditions: dict[Condition, bool] = {
        "root": os.geteuid() == 0,
        "mounts": mounts,
        "groups": usable_hierarchy() is not None,
    }
    return {name for name, is_there in conditions.items() if is_there}


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
