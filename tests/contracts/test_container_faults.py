"""What goes wrong with one container is the fault of one request: the executor goes on, and waits for nobody."""

from __future__ import annotations

import io
import tarfile
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from bough.errors import ExecutorError, InvalidInput
from bough.execution import CodeExecutionInput, ContainerCodeExecutor, Mount
from bough.execution.base import CodeExecutor
from bough.testing.docker_engine import root_file_system

pytestmark = [pytest.mark.anyio, pytest.mark.slow]

_BROKEN = "bough-broken:latest"


@pytest.fixture
async def broken(container_engine: str) -> AsyncIterator[CodeExecutor]:
    """An executor whose image has a python3 that ends at once."""
    import docker

    archive = io.BytesIO()
    with (
        tarfile.open(fileobj=io.BytesIO(root_file_system())) as source,
        tarfile.open(fileobj=archive, mode="w") as target,
    ):
        for member in source:
            if member.name != "usr/bin/python3":
                target.addfile(member, source.extractfile(member) if member.isfile() else None)
        python = tarfile.TarInfo("usr/bin/python3")
        script = b"#!/bin/sh\nexit 3\n"
        python.size, python.mode = len(script), 0o755
        target.addfile(python, io.BytesIO(script))
    client = docker.DockerClient(container_engine)
    repository, _, tag = _BROKEN.partition(":")
    client.api.import_image_from_data(archive.getvalue(), repository=repository, tag=tag)
    client.close()
    executor = ContainerCodeExecutor(_BROKEN, docker_host=container_engine)
    yield executor
    await executor.aclose()


async def test_a_container_that_ends_at_its_start_is_noticed(
    broken: CodeExecutor, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("bough.execution.container.container._START_SECONDS", 1e6)  # this test ends before
    with pytest.raises(ExecutorError, match="did not start"):
        await broken.execute(CodeExecutionInput(code="pass"))
    assert await broken.healthy()


async def test_a_request_that_cannot_be_shown_stops_no_other(container: CodeExecutor, tmp_path: Path) -> None:
    for name in ("plain", "with:colon"):
        (tmp_path / name).mkdir()
    plain = Mount(source=tmp_path / "plain", target="/shown")
    for mounts in ((Mount(source=tmp_path / "with:colon", target="/shown"),), (plain, plain)):
        with pytest.raises(InvalidInput):
            await container.execute(CodeExecutionInput(code="pass", mounts=mounts))
    assert await container.healthy()
    assert (await container.execute(CodeExecutionInput(code="print(1)", mounts=(plain,)))).stdout == b"1\n"
