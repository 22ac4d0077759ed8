"""A set of cases, read from a file or folder, with its faults."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

from bough.errors import InvalidInput
from bough.evals.case import CaseInput, SetCase, ToolUse, TurnInput
from bough.evals.document import Fault, SetFile, write_atomically
from bough.evals.trace import Trace
from bough.events.record import StoredEvent
from bough.types import JsonObject

if TYPE_CHECKING:
    from pydantic_evals import Case, Dataset
    from pydantic_evals.evaluators import Evaluator


SetFormat: TypeAlias = Literal["adk", "skill", "triggers", "pydantic", "harbor"]
"""The format from which a set was read."""


@dataclass(frozen=True, kw_only=True)
class EvalSet:
    """Cases and the faults of their file; cases with errors are omitted.

    Attributes:
        path: The file or folder from which the set was read; None for a set created in Python.
        sha256: Hexadecimal digest of the content of the file or folder; empty for a set created in Python.
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

    @classmethod
    def from_file(
        cls, file: SetFile, name: str, cases: Iterable[SetCase], format: SetFormat = "pydantic", **fields: Any
    ) -> EvalSet:
        """Return the set of a file, with the faults added while its cases were read.

        Args:
            cases: The valid cases; may be a generator that adds faults.
            fields: Other fields of the set.
        """
        # Before the faults are copied, because a generator of cases adds faults.
        read_cases = tuple(cases)
        faults = tuple(file.faults.items)
        return cls(
            name=name, cases=read_cases, faults=faults, path=file.path, sha256=file.sha256, format=format, **fields
        )

    @property
    def has_errors(self) -> bool:
        """Whether a case was omitted or the file cannot be used."""
        return any(fault.severity == "error" for fault in self.faults)

    def case(self, id: str) -> SetCase | None:
        """Return the case with an id; None if missing."""
        return next((case for case in self.cases if case.id == id), None)

    def dataset(
        self, metrics: Mapping[str, float | None] | None = None, *, judged: bool = True
    ) -> Dataset[CaseInput, str, dict[str, Any]]:
        """Return the set as pydantic-evals' `Dataset`, each case with the metrics that apply to it.

        Args:
            metrics: Thresholds by metric, which add to or replace those of the cases.
            judged: False omits evaluators that need a judge.
        """
        from pydantic_evals import Dataset

        return Dataset[CaseInput, str, dict[str, Any]](
            name=self.name,
            cases=[self.pydantic_case(case, case.id, metrics, judged=judged) for case in self.cases],
        )

    def pydantic_case(
        self, case: SetCase, name: str, metrics: Mapping[str, float | None] | None = None, *, judged: bool = True
    ) -> Case[CaseInput, str, dict[str, Any]]:
        """Return one case as pydantic-evals' `Case` with a name and its evaluators."""
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
        """Return the set as JSON in the format of pydantic-evals, which `save` writes."""
        return {"name": self.name, "cases": [_make_case_json(case) for case in self.cases]}

    def save(self, path: Path) -> None:
        """Write the set as a pydantic-evals file, YAML or JSON by its suffix, atomically.

        Raises:
            StoreError: The file cannot be written.
        """
        if path.suffix == ".json":
            text = json.dumps(self.as_json(), indent=2, ensure_ascii=False) + "\n"
        else:
            import yaml

            text = yaml.safe_dump(self.as_json(), sort_keys=False, allow_unicode=True)
        write_atomically(path, text)


def _make_case_json(case: SetCase) -> JsonObject:
    """Return a case in the format of pydantic-evals, without empty fields."""
    data: JsonObject = {
        "name": case.id,
        "inputs": case.input.model_dump(mode="json", exclude_defaults=True),
    }
    if case.input.reference is not None:
        data["expected_output"] = case.input.reference
    if case.metadata:
        data["metadata"] = case.metadata
    if case.evaluators:
        from pydantic_core import to_jsonable_python

        specs = [evaluator.as_spec() for evaluator in case.evaluators]
        data["evaluators"] = to_jsonable_python(specs, context={"use_short_form": True}, serialize_unknown=True)
    return data


def case_from_log(events: Sequence[StoredEvent], name: str) -> SetCase:
    """Return a conversation as a case: its messages, and as expectations its successful tool calls and its answers.

    Raises:
        InvalidInput: The conversation has no message.
    """
    turns = tuple(
        TurnInput(
            user="\n".join(turn.requests),
            tool_uses=tuple(ToolUse(call.tool, call.arguments) for call in turn.calls if call.error is None),
            reference=turn.answer or None,
        )
        for turn in Trace.of(events).turns
        if any(text.strip() for text in turn.requests)
    )
    if not turns:
        raise InvalidInput(
            "the conversation has no message, so it cannot become a case", hint="choose another conversation"
        )
    return SetCase(id=name, input=CaseInput(turns=turns))


def add_case(existing: EvalSet | None, path: Path, case: SetCase) -> EvalSet:
    """Append a case to a pydantic-evals file atomically and return the set.

    Args:
        existing: The set in the file; None if the file does not exist.

    Raises:
        InvalidInput: The file has errors, has another format, or has a case with the same id.
        StoreError: The file cannot be written.
    """
    eval_set = existing or EvalSet(name=path.stem, cases=())
    if eval_set.format != "pydantic":
        raise InvalidInput(f"{path} is not a pydantic-evals file", hint="give a .yaml file; it is created if missing")
    if eval_set.has_errors and eval_set.cases:
        raise InvalidInput(
            f"{path} has errors, and saving it would drop the invalid cases", hint="fix the faults first"
        )
    if eval_set.case(case.id) is not None:
        raise InvalidInput(f"{path} already has a case {case.id!r}", hint="give another --name")
    extended_set = replace(eval_set, cases=(*eval_set.cases, case))
    extended_set.save(path)
    return extended_set
