"""What surrounds the figures of the peers: the Python they run on, and the rows that two costs become."""

from __future__ import annotations

from pathlib import Path
from types import ModuleType

import pytest

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"


@pytest.fixture
def agent_servers(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    import agent_servers

    return agent_servers


def test_a_python_behind_a_shim_is_found(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    import peers

    programs = [tmp_path / folder / "python3.99" for folder in ("usual", "shims", "versions/3.99.1/bin")]
    for program in programs:
        program.parent.mkdir(parents=True)
        program.write_text("#!/bin/sh\nexit 1\n")
        program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path / 'usual'}:{tmp_path / 'missing'}:{tmp_path / 'shims'}")
    assert list(peers.find_programs("python3.99")) == programs
    assert list(peers.find_programs("python3.98")) == []


def test_a_call_is_a_row_of_wall_time_and_one_of_processor_time(agent_servers: ModuleType) -> None:
    import page

    for call in agent_servers.CALLS:
        peer_costs = [agent_servers.Cost(0.02, 0.01)] * 5
        own_costs = [agent_servers.Cost(0.005, 0.004)] * 5
        figures = agent_servers.make_figures(call.name, f"server 1.2.3, {call.route}", peer_costs, own_costs)
        wall, cpu = page.peers(figures, "").splitlines()[2:]
        assert wall.startswith(f"| REST: {call.name} (wall) | server 1.2.3, {call.route} | 20 ms | 5 ms | 4 |")
        assert cpu.startswith(f"| REST: {call.name} (CPU) | server 1.2.3, {call.route} | 10 ms | 4 ms | 2.5 |")
