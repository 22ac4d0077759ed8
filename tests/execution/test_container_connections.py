"""The connection to a container's first process is closed however the run ends."""

from __future__ import annotations

import asyncio
import os
import socket
from contextlib import closing

import pytest

from bough.execution import CodeExecutionInput
from bough.execution.container.child import Invitation
from bough.execution.process.identity import identity_for
from bough.execution.process.run_directory import RunDirectory
from bough.execution.process.workspace import Workspace
from bough.execution.request import make_plan


@pytest.mark.anyio
async def test_a_run_that_is_cancelled_before_the_token_arrives_closes_its_connection(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    run = make_plan(CodeExecutionInput(code="pass"), default_timeout_seconds=20.0)
    with closing(RunDirectory(groups=False)) as run_directory:
        workspace = Workspace.prepare(run, run_directory, identity_for(run.workspace))
        workspace.make_private()
        monkeypatch.chdir(workspace.exchange)
        await _cancel_while_waiting(workspace)


async def _cancel_while_waiting(workspace: Workspace) -> None:
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
