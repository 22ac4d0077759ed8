"""Data queries: tools of a data warehouse over DuckDB, SQL that is checked before it runs, and cases for both.

`DataTools` is imported when it is first used: sqlglot and ibis take half a second.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from bough.evals.data.tools import DataTools

__all__ = ["DataTools"]


def __getattr__(name: str) -> Any:
    if name == "DataTools":
        from bough.evals.data.tools import DataTools

        return DataTools
    raise AttributeError(f"module 'bough.evals.data' has no attribute {name!r}")
