"""The contract of tables beside the log as tests: subclass it, give it a `store` fixture, and pytest runs every rule.

Packages with tables of their own check them by `check_names`.
"""

from __future__ import annotations

import pytest

pytest.register_assert_rewrite(f"{__name__}.contract")  # so that failed assertions show their values

from bough.testing.side_tables.contract import NOTES, SideTablesContract, check_names  # noqa: E402

__all__ = ["NOTES", "SideTablesContract", "check_names"]
