"""bough's server beside OpenHands' agent server, over REST: what a call takes, and the processor time it costs.

Both are processes on 127.0.0.1 with a fresh home on the same disk, and are sent the same requests: bough takes the
bodies of OpenHands. No model is called. Each round opens its connections anew and repeats one request; the two servers
take turns. OpenHands runs without its log, its browser and its editor, which these calls do not use.
"""

from __future__ import annotations

import json
import os
import socket
import subprocess
import tempfile
import time
from collections.abc import Callable, Generator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from pathlib import Path
from time import perf_counter
from typing import Any
from urllib.parse import urlsplit

from harness import MIN_ROUNDS, ON_DISK, CannotMeasure, Figure, in_turns, print_note
from light_client import Connection, Cost, Refused, build_request, connect, measure_calls, read_cpu_seconds
from server_load import RunningServer, measure_resident_mib, serve

CONVERSATIONS = 10
EVENTS = 300
START_SECONDS = 300
END_SECONDS = 30
MESSAGE = {"role": "user", "content": [{"type": "text", "text": "x" * 200}], "run": False}

StartServer = Callable[[Path], AbstractContextManager[RunningServer]]


@dataclass(frozen=True)
class FilledServer:
    """A server with conversations, ready to be measured.

    Attributes:
        start_body: The body of a request that starts a conversation.
        growing_id: The conversation that messages are posted to.
        long_id: The conversation with `EVENTS` events, which does not change.
    """

    pid: int
    port: int
    start_body: dict[str, Any]
    growing_id: str
    long_id: str


@dataclass(frozen=True)
class Call:
    """A call that both servers take.

    Attributes:
        route: Method and path, as the row shows them.
        calls: Number of calls in a round: 0.1 s of processor time or more, which the kernel tells in ticks of 10 ms.
        peer_calls: Number of calls that the peer gets, where its calls take much longer; None for `calls`.
        at_once: Number of connections that each call is sent over.
    """

    name: str
    route: str
    build: Callable[[FilledServer], bytes]
    calls: int
    peer_calls: int | None = None
    at_once: int = 1


def build_get(server: FilledServer) -> bytes:
    return build_request("GET", f"/api/conversations/{server.long_id}")


CALLS = (
    Call("GET conversation", "GET /api/conversations/{id}", build_get, 200),
    Call("eight GETs at once", "GET /api/conversations/{id}", build_get, 25, at_once=8),
    Call(
        f"search of 100 of {EVENTS} events",
        "GET /api/conversations/{id}/events/search",
        lambda server: build_request("GET", f"/api/conversations/{server.long_id}/events/search?limit=100"),
        100,
    ),
    Call(
        f"list of {CONVERSATIONS}",
        "GET /api/conversations/search",
        lambda _: build_request("GET", f"/api/conversations/search?limit={CONVERSATIONS}"),
        100,
    ),
    Call(
        "create",
        "POST /api/conversations",
        lambda server: build_request("POST", "/api/conversations", server.start_body),
        50,
    ),
    Call(
        "post event",
        "POST /api/conversations/{id}/events",
        lambda server: build_request("POST", f"/api/conversations/{server.growing_id}/events", MESSAGE),
        50,
    ),
    Call(
        f"fork of {EVENTS} events",
        "POST /api/conversations/{id}/fork",
        lambda server: build_request("POST", f"/api/conversations/{server.long_id}/fork", {}),
        50,
        peer_calls=2,
    ),
)


def measure_servers(python: Path, package: str) -> list[Figure]:
    """Print and return the figures of the peer, with bough's as their floors.

    Args:
        python: Interpreter of the environment where OpenHands' server is installed.
        package: The name of its package, for its version.

    Raises:
        CannotMeasure: The peer does not start, or refuses a request.
    """
    peer_name = f"{package} {find_version(python, package)}"

    def start_peer(home: Path) -> AbstractContextManager[RunningServer]:
        return serve_openhands(python, home)

    figures: list[Figure] = []
    with tempfile.TemporaryDirectory(dir=ON_DISK) as name:
        folder = Path(name)
        with start_peer(folder / "peer") as peer_server, serve(folder / "bough") as own_server:
            print_note(f"writing {CONVERSATIONS} conversations, one with {EVENTS} events, in each server")
            own = prepare(own_server, folder / "own_work")
            with convert_refusal():
                peer = prepare(peer_server, folder / "peer_work")
            figures.append(compare_memory(peer, own, peer_name))
            for call in CALLS:
                figures += compare_call(call, peer, own, peer_name)
        figures += compare_starts(start_peer, folder, peer_name)
    return figures


def prepare(server: RunningServer, work: Path) -> FilledServer:
    """Return the server with its conversations."""
    work.mkdir()
    port = urlsplit(server.url).port or 80
    model = {"model": "openai/none", "api_key": "none", "usage_id": "agent"}
    start_body: dict[str, Any] = {
        "agent": {"kind": "Agent", "llm": model, "tools": []},
        "workspace": {"kind": "LocalWorkspace", "working_dir": str(work)},
        # OpenHands asks a model for a title at the first message otherwise, and waits for it.
        "autotitle": False,
    }
    start_request = build_request("POST", "/api/conversations", start_body)
    with connect(port) as (connection,):
        ids = [str(json.loads(connection.ask(start_request))["id"]) for _ in range(CONVERSATIONS)]
        events = f"/api/conversations/{ids[0]}/events"
        # OpenHands writes an event of its own beside each message.
        while int(connection.ask(build_request("GET", f"{events}/count"))) < EVENTS:
            connection.ask(build_request("POST", events, MESSAGE))
        expect_items(connection, f"{events}/search?limit=100", 100)
        expect_items(connection, f"/api/conversations/search?limit={CONVERSATIONS}", CONVERSATIONS)
    return FilledServer(server.pid, port, start_body, growing_id=ids[1], long_id=ids[0])


def expect_items(connection: Connection, path: str, count: int) -> None:
    """Raise `Refused` unless a page has so many items: an empty page is quickly read."""
    items = json.loads(connection.ask(build_request("GET", path)))["items"]
    if len(items) != count:
        raise Refused(f"{path} has {len(items)} items where {count} were due")


def compare_call(call: Call, peer: FilledServer, own: FilledServer, peer_name: str) -> list[Figure]:
    """Measure a call on both servers in turns."""

    def measure_peer() -> Cost:
        with convert_refusal():
            return measure(peer, call.peer_calls or call.calls)

    def measure(server: FilledServer, calls: int) -> Cost:
        return measure_calls(server.port, server.pid, call.build(server), calls=calls, at_once=call.at_once)

    peer_costs, own_costs = in_turns(measure_peer, lambda: measure(own, call.calls), rounds=MIN_ROUNDS)
    return make_figures(call.name, f"{peer_name}, {call.route}", peer_costs, own_costs)


def compare_starts(start_peer: StartServer, folder: Path, peer_name: str) -> list[Figure]:
    """Measure in turns how long both servers take until they are ready, each time in a fresh home."""
    numbers = iter(range(2 * (MIN_ROUNDS + 1)))

    def measure(start: StartServer) -> Cost:
        begin = perf_counter()
        with start(folder / f"start_{next(numbers)}") as server:
            return Cost(perf_counter() - begin, read_cpu_seconds(server.pid))

    costs = in_turns(lambda: measure(start_peer), lambda: measure(serve_bough), rounds=MIN_ROUNDS)
    return make_figures("start of the server", f"{peer_name}, until GET /ready answers 200", *costs)


def compare_memory(peer: FilledServer, own: FilledServer, peer_name: str) -> Figure:
    """Print and return the figure of the resident memory of both servers, before the calls."""
    peer_mib, own_mib = measure_resident_mib([peer.pid]), measure_resident_mib([own.pid])
    name = f"REST: memory with {CONVERSATIONS} conversations, {peer_name}, VmRSS"
    figure = Figure(name, round(peer_mib, 1), "MiB", round(own_mib, 1), round(peer_mib / own_mib, 3), 1)
    figure.report()
    return figure


def make_figures(name: str, called: str, peer_costs: list[Cost], own_costs: list[Cost]) -> list[Figure]:
    """Print and return the figure of the wall time and that of the processor time, in milliseconds."""
    wall = [cost.wall_seconds * 1e3 for cost in peer_costs], [cost.wall_seconds * 1e3 for cost in own_costs]
    cpu = [cost.cpu_seconds * 1e3 for cost in peer_costs], [cost.cpu_seconds * 1e3 for cost in own_costs]
    figures = [
        Figure.of(f"REST: {name} (wall), {called}", *wall, unit="ms"),
        Figure.of(f"REST: {name} (CPU), {called}", *cpu, unit="ms"),
    ]
    for figure in figures:
        figure.report()
    return figures


@contextmanager
def convert_refusal() -> Generator[None]:
    """Turn a refusal of the peer into `CannotMeasure`. A refusal of bough's is an error of this benchmark."""
    try:
        yield
    except Refused as error:
        raise CannotMeasure(str(error)) from error


@contextmanager
def serve_bough(home: Path) -> Generator[RunningServer]:
    """Start bough's server, and wait until it is ready."""
    with serve(home) as server:
        wait_until_ready(urlsplit(server.url).port or 80, lambda: True)
        yield server


@contextmanager
def serve_openhands(python: Path, home: Path) -> Generator[RunningServer]:
    """Start OpenHands' agent server, wait until it is ready, and end it."""
    home.mkdir()
    port = find_free_port()
    environment = {
        "PATH": os.environ["PATH"],
        "HOME": str(home),
        "LITELLM_LOCAL_MODEL_COST_MAP": "True",
        "LOG_LEVEL": "ERROR",
        "OH_ENABLE_VSCODE": "false",
        "OH_PRELOAD_TOOLS": "false",
        # bough seals posted keys as well.
        "OH_SECRET_KEY": "k" * 40,
        "OPENHANDS_SUPPRESS_BANNER": "1",
    }
    # -I: neither this folder's file names nor PYTHONPATH may stand in for the peer's modules.
    command = [python, "-I", "-m", "openhands.agent_server", "--host", "127.0.0.1", "--port", str(port)]
    with (
        (home / "log").open("wb") as log,
        subprocess.Popen(command, cwd=home, env=environment, stdout=log, stderr=log) as process,
    ):
        try:
            wait_until_ready(port, lambda: process.poll() is None)
            yield RunningServer(f"http://127.0.0.1:{port}", process.pid)
        finally:
            process.terminate()
            try:
                process.wait(END_SECONDS)
            except subprocess.TimeoutExpired:
                process.kill()


def wait_until_ready(port: int, is_alive: Callable[[], bool]) -> None:
    """Return when `GET /ready` answers 200.

    Raises:
        CannotMeasure: The process ended, or the time is over.
    """
    deadline = time.monotonic() + START_SECONDS
    while time.monotonic() < deadline and is_alive():
        try:
            with connect(port) as (connection,):
                connection.ask(build_request("GET", "/ready"))
        except (OSError, Refused):
            time.sleep(0.01)
        else:
            return
    raise CannotMeasure("its server does not become ready")


def find_free_port() -> int:
    """Return a port that nobody listens on now."""
    with socket.create_server(("127.0.0.1", 0)) as listening:
        return int(listening.getsockname()[1])


def find_version(python: Path, package: str) -> str:
    """Return the version of a package in another environment."""
    code = "import sys; from importlib.metadata import version; print(version(sys.argv[1]))"
    done = subprocess.run([python, "-I", "-c", code, package], capture_output=True, text=True, check=True)
    return done.stdout.strip()
