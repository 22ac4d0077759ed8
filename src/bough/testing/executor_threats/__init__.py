"""Attacks that every sandbox must stop, as tests: subclass `ExecutorThreats` and define the fixture `executor`.

Every attack targets something on the host: a secret, a folder, a listener, a process. The host decides whether it
succeeded: whether the secret came out, the folder changed, the listener was reached, the process is alive. If an attack
leaves no trace on the host (a system call that must not reach the kernel), the probe's own report counts, and only
against the sandbox. An executor without a sandbox fails these tests, which shows that the attacks work.
"""

from __future__ import annotations

import pytest

_PARTS = (
    *("base", "home", "identity", "reading", "writing", "names"),
    *("network", "kernel", "processes", "sessions", "bombs"),
)
pytest.register_assert_rewrite(*(f"{__name__}.{part}" for part in _PARTS))  # makes failed assertions show their values

from bough.testing.executor_threats.bombs import BombsThreats  # noqa: E402
from bough.testing.executor_threats.home import HomeThreats  # noqa: E402
from bough.testing.executor_threats.identity import IdentityThreats  # noqa: E402
from bough.testing.executor_threats.kernel import KernelThreats  # noqa: E402
from bough.testing.executor_threats.names import MountThreats, NameThreats  # noqa: E402
from bough.testing.executor_threats.network import NetworkThreats  # noqa: E402
from bough.testing.executor_threats.processes import ProcessThreats  # noqa: E402
from bough.testing.executor_threats.reading import ReadingThreats  # noqa: E402
from bough.testing.executor_threats.sessions import SessionThreats  # noqa: E402
from bough.testing.executor_threats.writing import WritingThreats  # noqa: E402

__all__ = ["ExecutorThreats", "MountThreats"]


class ExecutorThreats(
    HomeThreats,
    IdentityThreats,
    ReadingThreats,
    WritingThreats,
    NameThreats,
    MountThreats,
    NetworkThreats,
    KernelThreats,
    ProcessThreats,
    SessionThreats,
    BombsThreats,
):
    """Attacks on the host; every one must fail.

    A subclass may set `let_through`: the names of attacks that its sandbox is documented not to stop. They are then
    expected to succeed, and the test fails when they do not.
    """
