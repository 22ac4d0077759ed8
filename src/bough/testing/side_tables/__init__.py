"""The contract of side tables, as tests. Subclass it with a `store` fixture, and pytest runs all tests.

A package that adds side tables to the store checks their names with `check_names`.
"""

from __future__ import annotations

import pytest

pytest.register_assert_rewrite(f"{__name__}.contract")  # makes failed assertions show their values

from bough.testing.side_tables.contract import NOTES, SideTablesContract, check_names  # noqa: E402

__all__ = ["NOTES", "SideTablesContract", "check_names"]
