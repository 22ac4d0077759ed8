"""A set of cases: what a file or folder of evals was read as, with everything that is wrong with it."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

from bough.evals.case import CaseInput
from bough.evals.fault import Fault
from bough.evals.set_case import SetCase
from bough.evals.whole_file import write_whole
from bough.types import JsonObject

if TYPE_CHECKING:
    from pydantic_evals import Case, Dataset
    from pydantic_evals.evaluators import Evaluator


SetFormat: TypeAlias = Literal["adk", "skill", "triggers", "pydantic", "harbor"]
"""What a set was written as."""


@dataclass(frozen=True, kw_only=True)
class EvalSet:
    """Cases, and the faults of the file they come from; a case with an error is not among them.

    Attributes:
        path: The file or folder it was read from; None for a set made in Python.
        sha256: Digest of what was read, hexadecimal; of the cases for a set made in Python.
        evaluators: Evaluators for every case.
    """

    name: str
    cases: tuple[SetCase, ...]
    faults: tuple[Fault, ...] = ()
    path: Path | None = None
    sha256: str = ""
    format: SetFormat = "pydantic"
    description: str = ""
    evaluators: tuple[Evaluator[Any, Any, Any], ...] = ()

    @property
    def has_errors(self) -> bool:
        """Whether a case was left out, or the file cannot be used."""
        return any(fault.severity == "error" for fault in self.faults)

    def case(self, id: str) -> SetCase | None:
        """Return the case of that id; None where there is none."""
        return next((case for case in self.cases if case.id == id), None)

    def dataset(
        self, metrics: Mapping[str, float | None] | None = None, *, judged: bool = True
    ) -> Dataset[CaseInput, str, dict[str, Any]]:
        """Return the set as pydantic-evals' `Dataset`, each case with the metrics that it has material for.

        Args:
            metrics: Thresholds to add or replace, by metric.
            judged: False leaves out what needs a judge.
        """
        from pydantic_evals import Dataset

        return Dataset[CaseInput, str, dict[str, Any]](
            name=self.name,
            cases=[self.pydantic_case(case, case.id, metrics, judged=judged) for case in self.cases],
        )

    def pydantic_case(
        self, case: SetCase, name: str, metrics: Mapping[str, float | None] | None = None, *, judged: bool = True
    ) -> Case[CaseInput, str, dict[str, Any]]:
        """Return one case as pydantic-evals' `Case` under a name, with its evaluators."""
        from pydantic_evals import Case

        from bough.evals.metrics.evaluators import evaluators_for

        return Case(
            name=name,
            inputs=case.input,
            expected_output=case.input.reference,
            metadata=case.metadata,
            evaluators=tuple(evaluators_for(case, self.evaluators, metrics or {}, judged=judged)),
        )

    def as_json(self) -> JsonObject:
        """Return the set in the form that `save` writes: pydantic-evals' own."""
        return {"name": self.name, "cases": [_case_json(case) for case in self.cases]}

    def save(self, path: Path) -> None:
        """Write the set as a pydantic-evals file, YAML or JSON by its suffix, whole or not at all.

        Raises:
            StoreError: It cannot be written.
        """
        if path.suffix == ".json":
            text = json.dumps(self.as_json(), indent=2, ensure_ascii=False) + "\n"
        else:
            import yaml

            text = yaml.safe_dump(self.as_json(), sort_keys=False, allow_unicode=True)
        write_whole(path, text)


def _case_json(case: SetCase) -> JsonObject:
    found: JsonObject = {
        "name": case.id,
        "inputs": case.input.model_dump(mode="json", exclude_defaults=True),
    }
    if case.input.reference is not None:
        found["expected_output"] = case.input.reference
    if case.metadata:
        found["metadata"] = case.metadata
    if case.evaluators:
        from pydantic_core import to_jsonable_python

        specs = [each.as_spec() for each in case.evaluators]
        found["evaluators"] = to_jsonable_python(specs, context={"use_short_form": True}, serialize_unknown=True)
    return found
