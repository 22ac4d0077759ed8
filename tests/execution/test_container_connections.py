"""The connection to a container's first process is closed however the run ends."""

from __future__ import annotations

import asyncio
import os
import socket
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from bough.execution.container.child import Invitation
from bough.execution.process.identity import Identity


@pytest.mark.anyio
async def test_a_run_that_is_cancelled_before_the_token_arrives_closes_its_connection(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    workspace = cast("Any", SimpleNamespace(exchange=str(tmp_path), identity=Identity()))
    with (
        Invitation(workspace) as invitation,
        socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as wrong,
        socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as silent,
    ):
        for peer in (wrong, silent):
            peer.connect("socket")
            peer.settimeout(20)
        wrong.send(b"another token")
        accepting = asyncio.create_task(invitation.accept(lambda: asyncio.sleep(0, os.getpid())))
        assert await asyncio.to_thread(wrong.recv, 1) == b"", "the next connection is accepted in the same step"
        accepting.cancel()
        with pytest.raises(asyncio.CancelledError) as cancelled:
            await accepting
        assert silent.recv(1) == b"", "closed, not left to the garbage collector"
        assert cancelled.value is not None
