"""Data tools over the datasets that are made, once a process."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from bough.evals.data.public_data import PROJECT, ensure_datasets
from bough.evals.data.tools import DataTools


@pytest.fixture(scope="session")
def datasets(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return ensure_datasets(tmp_path_factory.mktemp("datasets"))


@pytest.fixture
async def tools(datasets: Path) -> AsyncIterator[DataTools]:
    made = DataTools.duckdb({PROJECT: datasets})
    yield made
    await made.aclose()
