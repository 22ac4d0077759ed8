"""Errors of data tools; the tools return them to the model as results."""

from __future__ import annotations

from collections.abc import Iterable
from difflib import get_close_matches
from typing import Literal, TypeAlias

from bough.types import JsonObject

QueryErrorCode: TypeAlias = Literal[
    "PROJECT_NOT_FOUND",
    "DATASET_NOT_FOUND",
    "TABLE_NOT_FOUND",
    "COLUMN_NOT_FOUND",
    "INVALID_ARGUMENT",
    "SQL_PARSE",
    "SQL_STATEMENTS",
    "SQL_NOT_ALLOWED",
    "SQL_FUNCTION",
    "SQL_FAILED",
    "SQL_TIMEOUT",
    "SQL_MEMORY",
    "UNAVAILABLE",
]


class QueryError(Exception):
    """An invalid name, or a query that was refused or failed. The tool returns it as its result and never raises it.

    Attributes:
        details: One sentence for the model.
        session_lost: Whether the query process ended and its temporary tables are lost.
    """

    def __init__(self, code: QueryErrorCode, details: str, *, session_lost: bool = False) -> None:
        super().__init__(details)
        self.code: QueryErrorCode = code
        self.details = details
        self.session_lost = session_lost

    def as_result(self) -> JsonObject:
        """Return the error as a tool's result: ADK's fields `status` and `error_details`, and a code."""
        result: JsonObject = {"status": "ERROR", "error_code": self.code, "error_details": self.details}
        return result | ({"session_lost": True} if self.session_lost else {})


def suggest_similar(name: str, names: Iterable[str]) -> str:
    """Return a "did you mean" suffix for an error message; empty if no name is similar."""
    matches = get_close_matches(name, list(names), n=1, cutoff=0.5)
    return f"; did you mean {matches[0]!r}?" if matches else ""
