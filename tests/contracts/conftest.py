"""The public suites explain their failures as tests of this repository do."""

import pytest

pytest.register_assert_rewrite("bough.testing.executor_contract", "bough.testing.executor_threats")
