"""The public suites explain their failures as tests of this repository do; one container engine serves them all."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

pytest.register_assert_rewrite("bough.testing.executor_contract", "bough.testing.executor_threats")


@pytest.fixture(scope="session")
def container_engine() -> Iterator[str]:
    """Where a real container engine listens that has the image of `bough.testing.docker_engine`."""
    from bough.testing.docker_engine import engine, make_image, missing

    lacking = missing()
    if lacking and os.environ.get("CI") and os.geteuid() == 0:
        pytest.fail(f"the container tests have to run here: {lacking}")
    if lacking:
        pytest.skip(lacking)
    with (
        tempfile.TemporaryDirectory(prefix="engine-", ignore_cleanup_errors=True) as folder,
        engine(Path(folder)) as host,
    ):
        make_image(host)
        yield host
