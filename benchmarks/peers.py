"""Bough beside its peers: a fork of 1,000 and 10,000 events, finding 1,000 skills, and the calls of an agent server.

`peers.py [PEER ...] [--page FILE]`; runs only when asked for.

Each peer is installed by uv into a virtual environment of its own and runs in a process of its own, in turns with
bough's own call of the same name, which is the `floor` of the figure: the `ratio` shows how many times longer the peer
takes. OpenHands' agent server and bough's get the same REST requests; a call has a figure of its wall time and one of
the processor time of the server's process (`agent_servers.py`). No model is called. If a peer cannot be installed here
or lacks the operation, one line says so, and the others continue. `--page` replaces the measured rows in the file after
each peer.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Awaitable, Callable, Generator, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import IO

from agent_servers import measure_servers
from bough import AsyncConversation
from bough.events import SqliteEventStore
from bough.settings import Settings
from bough.skills.find.discover import Root, discover
from harness import (
    MIN_ROUNDS,
    CannotMeasure,
    Figure,
    in_turns_async,
    measure_seconds,
    measure_seconds_async,
    print_note,
)
from page import part_of, peers, rewrite
from talk import talk

SIZES = (1_000, 10_000)
SKILLS = 1_000
FORKS = 20
"""The number of forks that bough makes in a round: one fork is too short to be timed."""
CHILD = Path(__file__).parent / "peer" / "child.py"


@dataclass(frozen=True)
class Peer:
    """A peer to be installed.

    Attributes:
        python: The oldest minor version of Python 3 that its current release runs on.
        forks: The operations of `peer/child.py` that are most like a fork, each with a description.
        skills: Whether it has a public loader of skill folders.
        server: Whether it is a server that takes the requests of `agent_servers.py`; then it has no `peer/child.py`.
    """

    name: str
    packages: tuple[str, ...]
    python: int
    forks: tuple[tuple[str, str], ...] = ()
    skills: bool = False
    server: bool = False


PEERS = (
    Peer(
        "langgraph",
        ("langgraph", "langgraph-checkpoint-sqlite"),
        11,
        (("fork", "update_state, one message"), ("copy", "update_state as __copy__")),
    ),
    Peer("openai-agents", ("openai-agents",), 11, (("fork", "create_branch_from_turn"),)),
    Peer("openhands", ("openhands-sdk",), 12, (("fork", "Conversation.fork"),), skills=True),
    Peer("openhands-server", ("openhands-agent-server",), 12, server=True),
)


class Child:
    """A peer's process, which gets requests on its standard input and answers on its standard output."""

    def __init__(self, asked: IO[str], answered: IO[str]) -> None:
        self.asked, self.answered = asked, answered
        self.versions = str(self.answer()["versions"])

    def ask(self, operation: str, argument: int | str) -> float:
        """Return the seconds that the operation took in the peer; 0 where it is not timed."""
        # If the process has ended, the missing answer shows it.
        with suppress(BrokenPipeError):
            print(json.dumps([operation, argument]), file=self.asked, flush=True)
        return float(self.answer()["seconds"] or 0)

    def answer(self) -> dict[str, str]:
        """Return the next answer, or raise `CannotMeasure` with what the peer said."""
        line = self.answered.readline()
        answer = json.loads(line) if line else {"lacks": "its process ended"}
        if "lacks" in answer:
            raise CannotMeasure(answer["lacks"])
        return answer


def find_interpreter(oldest: int) -> str:
    """Return a Python that is new enough: this one if possible, otherwise the first on the path that runs."""
    if sys.version_info >= (3, oldest):
        return sys.executable
    for minor in range(oldest, oldest + 3):
        for python in find_programs(f"python3.{minor}"):
            if subprocess.run([python, "-c", "import venv"], capture_output=True).returncode == 0:
                return str(python)
    raise CannotMeasure(f"it needs Python 3.{oldest} or newer, and the path has none that runs")


def find_programs(name: str) -> Iterator[Path]:
    """Yield the programs of that name on the path, and pyenv's, whose shims fail unless the version is chosen."""
    for folder in map(Path, os.environ.get("PATH", "").split(os.pathsep)):
        behind = folder.parent.glob(f"versions/*/bin/{name}") if folder.name == "shims" else ()
        yield from (program for program in (folder / name, *behind) if os.access(program, os.X_OK))


def install(peer: Peer, folder: Path) -> Path:
    """Return the interpreter of a new virtual environment with the peer's current release."""
    print_note(f"installing {' '.join(peer.packages)}")
    uv = shutil.which("uv", path=os.pathsep.join([str(Path(sys.executable).parent), os.environ.get("PATH", "")]))
    if uv is None:
        raise CannotMeasure("there is no uv to install it with; `make setup` brings it")
    python = folder / "venv" / "bin" / "python"
    for command in (
        [uv, "venv", "--quiet", "--python", find_interpreter(peer.python), folder / "venv"],
        [uv, "pip", "install", "--quiet", "--python", python, *peer.packages],
    ):
        done = subprocess.run(command, capture_output=True, text=True)
        if done.returncode != 0:
            raise CannotMeasure((done.stderr.strip().splitlines() or ["it cannot be installed"])[-1])
    return python


@contextmanager
def run_peer(peer: Peer, folder: Path) -> Generator[Child]:
    """Install the peer, start its process, and end it."""
    (folder / "data").mkdir(parents=True)
    # -P: the benchmarks' own file names must not stand in for the peer's modules.
    command = [install(peer, folder), "-P", CHILD, peer.name, folder / "data"]
    home = os.environ | {"HOME": str(folder)}
    with (
        (folder / "errors").open("w") as errors,
        subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=errors, text=True, env=home
        ) as process,
    ):
        if process.stdin is None or process.stdout is None:
            raise CannotMeasure("its process has no pipes")
        try:
            yield Child(process.stdin, process.stdout)
        finally:
            with suppress(BrokenPipeError):
                process.stdin.close()
            process.wait()


async def fork(source: AsyncConversation) -> float:
    """Return the seconds that `Conversation.fork` takes. The forks are closed afterwards."""
    opened: list[AsyncConversation] = []

    async def fork_repeatedly() -> None:
        for _ in range(FORKS):
            opened.append(await source.fork())

    taken = await measure_seconds_async(fork_repeatedly) / FORKS
    for conversation in opened:
        await conversation.aclose()
    return taken


async def compare_operation(
    name: str, child: Child, request: tuple[str, int | str], measure_own: Callable[[], Awaitable[float]]
) -> list[Figure]:
    """Print and return the figure of a peer's operation with bough's own as its floor, in milliseconds."""

    async def measure_peer() -> float:
        return child.ask(*request)

    try:
        values, floors = await in_turns_async(measure_peer, measure_own, rounds=MIN_ROUNDS)
    except CannotMeasure as error:
        print_note(f"{name} is left out: {error}")
        return []
    figure = Figure.of(name, [value * 1e3 for value in values], [floor * 1e3 for floor in floors], unit="ms")
    figure.report()
    return [figure]


def write_skills(root: Path) -> None:
    """Write skill folders that every loader accepts, so that each loader reads the same."""
    for number in range(SKILLS):
        folder = root / f"report-{number}"
        folder.mkdir(parents=True)
        head = f"---\nname: report-{number}\ndescription: Write report {number}. Use when a report is asked for.\n---\n"
        (folder / "SKILL.md").write_text(head + "## Step\n\nRead the table and write what it says.\n\n" * 20)


async def measure_discovery(root: Path) -> float:
    """Return the seconds that bough takes to find the skills, without an index."""
    counts: list[int] = []
    taken = measure_seconds(lambda: counts.append(len(discover(Root(root)).skills)))
    if counts != [SKILLS]:
        raise AssertionError(f"{counts} of {SKILLS} skills were found")
    return taken


async def measure(peer: Peer, child: Child, sources: dict[int, AsyncConversation], skills: Path) -> list[Figure]:
    figures: list[Figure] = []
    for size, source in sources.items():
        child.ask("prepare", size)
        for operation, what in peer.forks:
            name = f"fork of {size} events, {child.versions}, {what}"
            figures += await compare_operation(name, child, (operation, size), lambda source=source: fork(source))
    if peer.skills:
        name = f"discover {SKILLS} skills, {child.versions}"
        figures += await compare_operation(name, child, ("skills", str(skills)), lambda: measure_discovery(skills))
    return figures


async def main(wanted: list[str], page: Path | None) -> None:
    """Measure the named peers, or all of them."""
    with tempfile.TemporaryDirectory(dir=Path.cwd()) as name:
        folder = Path(name)
        write_skills(folder / "skills")
        store = await SqliteEventStore.open(folder / "log.db")
        settings = Settings.load(home=folder / "home", env={}, cwd=folder)
        chosen = [peer for peer in PEERS if not wanted or peer.name in wanted]
        sizes = SIZES if any(peer.forks for peer in chosen) else ()
        sources = {size: await talk(store, size, settings, folder) for size in sizes}
        for peer in chosen:
            try:
                if peer.server:
                    figures = measure_servers(install(peer, folder / peer.name), peer.packages[0])
                else:
                    with run_peer(peer, folder / peer.name) as child:
                        figures = await measure(peer, child, sources, folder / "skills")
            except CannotMeasure as error:
                print_note(f"{peer.name} is left out: {error}")
                continue
            if page is not None:
                rewrite(page, "peers", peers(figures, part_of(page, "peers")))
        for source in sources.values():
            await source.aclose()
        await store.aclose()


def exit_by_signal(number: int, _: FrameType | None) -> None:
    """Leave every `with` block, then exit with the exit code of the signal."""
    sys.exit(128 + number)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("peers", nargs="*", metavar="PEER")
    parser.add_argument("--page", type=Path, metavar="FILE")
    options = parser.parse_args()
    if unknown := set(options.peers) - {peer.name for peer in PEERS}:
        parser.error(f"no peer {', '.join(sorted(unknown))}; there are: {', '.join(peer.name for peer in PEERS)}")
    # The default action ends this process without ending the servers that it started.
    signal.signal(signal.SIGTERM, exit_by_signal)
    asyncio.run(main(options.peers, options.page))
