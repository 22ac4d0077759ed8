"""One case of a set: its id, what it asks, and the evaluators it brings."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from hashlib import sha256
from typing import TYPE_CHECKING, Any

from bough.evals.case import CaseInput
from bough.types import JsonObject

if TYPE_CHECKING:
    from pydantic_evals.evaluators import Evaluator


@dataclass(frozen=True, kw_only=True)
class SetCase:
    """One case of a set.

    Attributes:
        id: Unique in its set.
        evaluators: Evaluators that the case brings itself, beside the metrics it has material for.
        metadata: Whatever the file says besides; free JSON.
        split: For trigger queries: `train` or `validation`.
    """

    id: str
    input: CaseInput
    evaluators: tuple[Evaluator[Any, Any, Any], ...] = ()
    metadata: JsonObject = field(default_factory=dict[str, Any])
    split: str = ""

    @property
    def sha256(self) -> str:
        """Digest of what the case asks and expects, hexadecimal."""
        said = self.input.model_dump(mode="json", exclude={"files": {"__all__": {"source"}}, "skill_roots": True})
        specs = [repr(each) for each in self.evaluators]
        return sha256(json.dumps([said, specs], sort_keys=True).encode()).hexdigest()
