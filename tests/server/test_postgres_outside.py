"""Webhooks, quotas and tenants on Postgres: their statements are written twice."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx2
import pytest
from tests.server.a2a.test_wire import (  # noqa: F401 - run again, on the store of this module
    test_a_page_says_how_many_there_are_and_what_follows,
)
from tests.server.test_quotas import (  # noqa: F401 - run again, on the store of this module
    test_a_tenant_that_used_its_tokens_waits_for_the_next_day,
)
from tests.server.test_webhooks import (  # noqa: F401 - run again, on the store of this module
    test_changes_are_told_and_signed_and_contents_are_not,
    test_one_that_fails_for_long_is_switched_off_until_it_takes_a_test,
    test_what_fails_is_tried_again_and_a_tested_webhook_is_told,
)

from bough.settings import Settings

pytestmark = [pytest.mark.needs("postgres"), pytest.mark.slow]


@pytest.fixture
def settings(tmp_path: Path, database: str) -> Settings:
    """Settings whose store is a database of its own."""
    env = {"BOUGH_STORE": database, "BOUGH_SECRET_KEY": "k" * 40}
    return Settings.load(home=tmp_path / "home", env=env, cwd=tmp_path)


@pytest.fixture
def one_server(serving: Any) -> Iterator[tuple[httpx2.Client, str]]:
    """A client of a server on that store."""
    with serving("one", "two", "three") as server, server.client() as client:
        yield client, ""
