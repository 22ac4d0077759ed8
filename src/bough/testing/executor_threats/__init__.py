"""Attacks that every sandbox must stop, as tests. Subclass `ExecutorThreats` with an `executor` fixture.

Every attack targets something on the host: a secret, a folder, a listener, a process. The test checks on the host
whether the attack succeeded: whether the secret was read, the folder changed, the listener reached, the process killed.
Some attacks, such as forbidden system calls, leave no trace on the host. Their own report then decides, and can only
fail the test. An executor without a sandbox fails these tests; this proves that the attacks work.
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
    """Attacks on the host, all of which must fail.

    A subclass may set `let_through`: the names of attacks that its sandbox, as documented, does not stop. These must
    succeed; otherwise the test fails.
    """
