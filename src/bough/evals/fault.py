"""A fault of an eval set: what is wrong, and in which file, case and field."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, TypeAlias

from bough.types import JsonObject

FaultCode: TypeAlias = Literal[
    "not-json",
    "not-yaml",
    "not-utf8",
    "shape",
    "missing",
    "type",
    "unknown-field",
    "duplicate-id",
    "empty",
    "no-prompt",
    "file-missing",
    "file-outside",
    "rubric-empty",
    "evaluator-unknown",
    "evaluator-arguments",
    "threshold",
    "too-many",
    "too-long",
    "unsupported",
]
"""What can be wrong with a set; stable."""

Severity: TypeAlias = Literal["error", "warning", "note"]


@dataclass(frozen=True, slots=True)
class Fault:
    """One thing that is wrong with a set. A case with a fault of severity `error` is left out of it.

    Attributes:
        file: Path of the file.
        case: Id of the case, or its place where it has none; empty for the file itself.
        field: Where in the case, for example `conversation[0].user_content`; empty for the case itself.
    """

    code: FaultCode
    file: str
    case: str
    field: str
    message: str
    severity: Severity = "error"

    def as_dict(self) -> JsonObject:
        """Return the fault as JSON."""
        return {
            "code": self.code,
            "severity": self.severity,
            "file": self.file,
            "case": self.case,
            "field": self.field,
            "message": self.message,
        }

    def __str__(self) -> str:
        place = ", ".join(filter(None, (self.file, f"case {self.case}" if self.case else "", self.field)))
        return f"{place}: {self.message}"
