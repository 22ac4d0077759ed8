"""Webhooks, quotas and tenants on Postgres: their statements are written twice."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.server.a2a.test_wire import (  # noqa: F401 - run again, on the store of this module
    test_what_changed_last_is_listed_first,
)
from tests.server.test_keys import (  # noqa: F401 - run again, on the store of this module
    test_the_same_request_twice_makes_one_key_whose_text_is_kept_nowhere,
    two_tenants,
)
from tests.server.test_quotas import (  # noqa: F401 - run again, on the store of this module
    test_a_tenant_cannot_have_more_conversations_than_its_limit,
    test_a_tenant_that_used_its_tokens_waits_for_the_next_day,
)
from tests.server.test_run_limits import (  # noqa: F401 - run again, on the store of this module
    test_runs_beyond_those_that_may_wait_are_refused,
)
from tests.server.test_tasks import (  # noqa: F401 - run again, on the store of this module
    test_a_task_is_submitted_followed_and_listed,
)
from tests.server.test_webhooks import (  # noqa: F401 - run again, on the store of this module
    test_changes_are_told_and_signed_and_contents_are_not,
    test_one_that_fails_for_long_is_switched_off_until_it_takes_a_test,
    test_receivers_that_are_slow_delay_nothing_else,
    test_what_fails_is_tried_again_and_a_tested_webhook_is_told,
)

from bough.settings import Settings

pytestmark = [pytest.mark.needs("postgres"), pytest.mark.slow]


@pytest.fixture
def settings(tmp_path: Path, database: str) -> Settings:
    """Settings whose store is a database of its own."""
    env = {"BOUGH_STORE": database, "BOUGH_SECRET_KEY": "k" * 40}
    return Settings.load(home=tmp_path / "home", env=env, cwd=tmp_path)
