"""What a data tool answers when it cannot do what it was asked."""

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
    """A query or a name that was refused or failed; becomes the answer of the tool, never leaves it.

    Attributes:
        details: One sentence for the model.
        session_lost: Temporary tables are gone with the process that held them.
    """

    def __init__(self, code: QueryErrorCode, details: str, *, session_lost: bool = False) -> None:
        super().__init__(details)
        self.code: QueryErrorCode = code
        self.details = details
        self.session_lost = session_lost

    def as_answer(self) -> JsonObject:
        """Return the answer: ADK's two fields and a code."""
        answer: JsonObject = {"status": "ERROR", "error_code": self.code, "error_details": self.details}
        return answer | ({"session_lost": True} if self.session_lost else {})


def nearest(name: str, known: Iterable[str]) -> str:
    """Return the end of a message that names the nearest known name; empty where none is near."""
    matches = get_close_matches(name, list(known), n=1, cutoff=0.5)
    return f"; did you mean {matches[0]!r}?" if matches else ""
