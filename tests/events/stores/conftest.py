"""A Postgres behind a proxy that can stop, slow down, drop and come back."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from tests.events.stores.flaky_proxy import FlakyProxy, flaky_proxy

from bough.testing.postgres import drop_schema
from bough.types import new_id


@pytest.fixture
def short(monkeypatch: pytest.MonkeyPatch) -> None:
    """Bounds a test can wait for; that they are kept does not depend on how long they are."""
    for module in ("bounds", "store", "appending", "connection"):
        path = f"bough.events.stores.postgres.{module}"
        for name, seconds in {"ANSWER_SECONDS": 0.6, "CALL_SECONDS": 1.5, "CONNECT_SECONDS": 2.0}.items():
            monkeypatch.setattr(f"{path}.{name}", seconds, raising=False)


@pytest.fixture
def schema(postgres: str) -> Iterator[str]:
    name = f"flaky_{new_id().hex}"
    yield name
    drop_schema(postgres, name)


@pytest.fixture
def between(postgres: str) -> Iterator[tuple[FlakyProxy, str]]:
    with flaky_proxy(postgres) as pair:
        yield pair
