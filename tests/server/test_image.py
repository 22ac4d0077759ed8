"""The image: built without a package index from wheels of this machine, run as an ordinary user, used over HTTP."""

from __future__ import annotations

import gc
import io
import re
import shutil
import subprocess
import tarfile
import warnings
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import httpx2
import pytest

from bough.testing import docker_engine

ROOT = Path(__file__).parents[2]
BASE, IMAGE = "bough-machine-base:latest", "bough-server:test"
PROGRAMS = ("/usr/bin/install", "/usr/bin/tini", "/usr/bin/bwrap", "/usr/bin/git", "/bin/mkdir", "/bin/chown")
LIBRARIES = (
    "libstdc++.so.6",
    "libgcc_s.so.1",
    "libm.so.6",
    "librt.so.1",
    "libpthread.so.0",
    "libdl.so.2",
    "libutil.so.1",
)
"""What wheels for any Linux are linked with."""

pytestmark = [pytest.mark.slow, pytest.mark.needs("docker"), pytest.mark.timeout(400)]


@pytest.fixture(scope="module")
def engine(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    import docker

    with docker_engine.engine(tmp_path_factory.mktemp("engine")) as host:
        client = docker.DockerClient(host, timeout=300)
        yield client
        client.close()
        # The client's library leaves the socket of a followed log to the collector, which warns of it.
        with warnings.catch_warnings(action="ignore", category=ResourceWarning):
            gc.collect()


def make_wheels(folder: Path) -> None:
    version = subprocess.run(
        ["/usr/bin/python3", "-c", "import sys; print('%d.%d' % sys.version_info[:2])"], capture_output=True, text=True
    )
    wanted = [f"WHEELS={folder}", f"IMAGE_PYTHON={version.stdout.strip()}"]
    subprocess.run(["make", "--silent", "wheels", *wanted], cwd=ROOT, check=True)


def import_base(client: Any) -> None:
    """Make the base of this machine: its Python whole, a shell, and what the image has beside it."""
    repository, _, tag = BASE.partition(":")
    libraries = [str(path) for name in LIBRARIES for path in Path("/usr/lib").glob(f"*/{name}")]
    system = docker_engine.root_file_system(programs=(*PROGRAMS, *libraries))
    client.api.import_image_from_data(system, repository=repository, tag=tag)


def context_of(folder: Path) -> Iterator[bytes]:
    """Return the context of a build as the daemon reads it."""
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w") as tar:
        tar.add(ROOT / "Dockerfile", "Dockerfile")
        tar.add(folder, "wheels")
    packed.seek(0)
    return packed  # type: ignore[return-value]


def test_the_image_is_built_from_wheels_and_serves(engine: Any, tmp_path: Path) -> None:
    make_wheels(tmp_path / "wheels")
    import_base(engine)
    lines: list[str] = []
    for line in engine.api.build(
        fileobj=context_of(tmp_path / "wheels"), custom_context=True, tag=IMAGE, buildargs={"BASE": BASE}, decode=True,
        network_mode="none", rm=True, forcerm=True,
    ):  # fmt: skip
        lines.append(str(line.get("stream") or line.get("error") or ""))
    shutil.rmtree(tmp_path / "wheels")
    assert any("Successfully tagged" in line for line in lines), "".join(lines)[-3000:]
    about = engine.images.get(IMAGE).attrs["Config"]
    assert about["User"] == "10001"
    # The engine of the tests has no network of its own, so the container shares the machine's, on loopback.
    container = engine.containers.run(
        IMAGE, ["bough", "serve", "--host", "127.0.0.1", "--port", "0"], detach=True, network_mode="host",
        read_only=True, tmpfs={"/tmp": ""}, environment={"BOUGH_MODEL": "offline"},
    )  # fmt: skip
    try:
        said, found = "", None
        with closing(container.logs(stream=True, follow=True)) as pieces:
            for piece in pieces:
                said += piece.decode()
                if found := re.search(r"listening on (\S+)\s", said):
                    break
        assert found, said
        use(found[1])
    finally:
        container.stop(timeout=30)
        ended = container.wait()
        container.remove(force=True, v=True)
    assert ended["StatusCode"] == 0, "it drains and ends by itself"


def use(url: str) -> None:
    with httpx2.Client(base_url=url, timeout=60, trust_env=False) as client:
        assert client.get("/ready").status_code == 200
        id = client.post("/api/conversations", json={"initial_message": "hello"}).json()["id"]
        answer = client.post(f"/api/conversations/{id}/run", json={"wait": 60})
        assert (answer.status_code, answer.json()["status"]) == (200, "finished"), answer.text
        ran = answer.json()
        fork = client.post(f"/api/conversations/{id}/fork", json={"reason": "in a container"})
        assert fork.status_code == 201, fork.text
        assert fork.json()["lineage"]["forked_from"] == id
        compared = client.get(f"/api/conversations/{id}/compare/{fork.json()['id']}").json()
        assert compared["common"] == ran["head"]
