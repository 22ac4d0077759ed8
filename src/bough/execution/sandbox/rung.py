"""The rungs, which are kinds of sandboxes: the protocol of a rung, its probe report, and the Python that it runs."""

from __future__ import annotations

import os
import re
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Protocol, Self

from bough.execution.base import Isolation
from bough.execution.gaps import Condition
from bough.execution.process.cgroup import find_usable_hierarchy
from bough.execution.process.child import Launch
from bough.execution.process.identity import Identity
from bough.execution.process.workspace import Workspace
from bough.execution.request import Plan

INSIDE: Final = str(Path(__file__).parent.parent / "inside")
"""The folder of bough's own programs that run inside a sandbox."""

FIRST_SOURCES: Final = ("program.py", "init.py")
"""The files of the first process in `INSIDE`, in the order in which they must be executed."""

FIRST: Final = """
import marshal, sys
compiled, main = marshal.loads(open({!r}, 'rb').read())
sys.modules['program'] = module = type(sys)('program')
exec(compiled, module.__dict__)
exec(main)
"""
"""A program that starts the first process from compiled code; the placeholder is the code's path or descriptor."""

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
"""A program that compiles the first process and finds the folders of packages, once instead of in every run.

It compiles the files named by its arguments, or else the files in its input, which are separated by zero bytes.
"""


def read_first_sources() -> bytes:
    """Return the input of `PREPARE`, for a sandbox that contains no file of bough."""
    return b"\0".join(Path(INSIDE, name).read_bytes() for name in FIRST_SOURCES)


@dataclass(frozen=True)
class Preparation:
    """The result of `PREPARE` in a sandbox.

    Attributes:
        code: The compiled files of `FIRST_SOURCES`, for the interpreter that runs there.
        site: The folders of packages that this interpreter would add.
    """

    code: bytes = b""
    site: tuple[str, ...] = ()

    @classmethod
    def parse(cls, output: bytes) -> Self:
        """Parse the output of `PREPARE`.

        Raises:
            ValueError: The output is malformed.
        """
        size_text, _, remainder = output.partition(b" ")
        code_size = int(size_text)
        folders = remainder[code_size:].split(b"\0")
        return cls(remainder[:code_size], tuple(os.fsdecode(folder) for folder in folders if folder))


def find_conditions(*, mounts: bool) -> set[Condition]:
    """Return the conditions that this machine meets, for `list_gaps`. Blocks.

    Args:
        mounts: Whether the rung can create mounts.
    """
    conditions: dict[Condition, bool] = {
        "root": os.geteuid() == 0,
        "mounts": mounts,
        "groups": find_usable_hierarchy() is not None,
    }
    return {name for name, is_met in conditions.items() if is_met}


@dataclass(frozen=True, kw_only=True)
class RungReport:
    """The result of probing a rung.

    Attributes:
        works: Whether a program has just run in it successfully.
        missing: One sentence about what is missing; empty if the rung works.
        install: The command that installs or enables what is missing; empty if none is known.
        gaps: The promises of `docs/concepts/isolation.md` that it does not keep on this machine for this user.
    """

    name: str
    isolation: Isolation
    works: bool
    missing: str = ""
    install: str = ""
    gaps: tuple[str, ...] = ()


class Rung(Protocol):
    """A kind of sandbox in which plans can run.

    Attributes:
        interpreters: The interpreters that a probe tries, in this order.
    """

    name: str
    isolation: Isolation
    interpreters: tuple[Interpreter, ...]

    async def probe(self) -> RungReport:
        """Report whether the rung works on this machine now, by running a program in it."""
        ...

    def identity(self, plan: Plan) -> Identity:
        """Return the user that runs `plan` in it."""
        ...

    def launch(self, plan: Plan, workspace: Workspace) -> Launch:
        """Return the command that runs `plan` in the rung. Must be called only after a successful probe."""
        ...


_SYSTEM_FOLDERS: Final = ("/usr/bin", "/usr/local/bin")
_VERSIONED_NAME: Final = re.compile(r"python(\d+)\.(\d+)")
Version = tuple[int, int]


@dataclass(frozen=True)
class Interpreter:
    """A Python interpreter and its folder.

    Attributes:
        path: The path of the executable, the same inside and outside of the sandbox.
        folder: The folder to mount read-only at the same path; None if the interpreter is below `/usr`.
        version: For example `(3, 13)`; None if the executable's name does not contain it.
    """

    path: str
    folder: str | None = None
    version: Version | None = None


def list_interpreters(version: Version | None = None) -> tuple[Interpreter, ...]:
    """Return the interpreters to try: the machine's own Python if there is one, then the one that runs bough.

    A script can import its standard library and its installed packages, but no package of a virtual environment.

    Args:
        version: The only version to return; None for any.
    """
    name = "python3" if version is None else f"python{version[0]}.{version[1]}"
    system = [_find_system_interpreter(f"{folder}/{name}") for folder in _SYSTEM_FOLDERS]
    interpreters = [*[interpreter for interpreter in system if interpreter is not None][:1], find_own_interpreter()]
    return tuple(item for item in dict.fromkeys(interpreters) if version is None or item.version == version)


def _find_system_interpreter(path: str) -> Interpreter | None:
    real_path = os.path.realpath(path)
    if not real_path.startswith("/usr/") or not os.access(path, os.X_OK):
        return None
    match = _VERSIONED_NAME.fullmatch(os.path.basename(real_path))
    return Interpreter(path, version=None if match is None else (int(match[1]), int(match[2])))


def find_own_interpreter() -> Interpreter:
    """Return the Python that runs bough, without its virtual environment."""
    base = os.path.realpath(sys.base_prefix)
    path = os.path.join(base, "bin", f"python{sys.version_info.major}.{sys.version_info.minor}")
    if not os.path.exists(path):
        path = os.path.realpath(sys.executable)
    return Interpreter(path, None if base.startswith("/usr") else base, (sys.version_info[0], sys.version_info[1]))
