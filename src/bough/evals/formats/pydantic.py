"""Datasets of pydantic-evals, YAML or JSON. Cases are read one by one, so that an invalid case does not affect others.

pydantic-evals itself rejects a whole file for one unknown evaluator or missing `inputs`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, cast

from pydantic import ValidationError

from bough.evals.case import CaseInput, FileInput, SetCase, TurnInput
from bough.evals.document import Entry, FaultCode, SetFile, limit_cases, type_name
from bough.evals.eval_set import EvalSet
from bough.evals.score import METRICS
from bough.types import Json, JsonObject

_FIELDS = frozenset({"name", "cases", "evaluators", "report_evaluators", "$schema"})
_CASE_FIELDS = frozenset({"name", "inputs", "metadata", "expected_output", "evaluators"})


def read_pydantic_set(document: SetFile) -> EvalSet:
    """Return the set of a pydantic-evals file; cases with errors are omitted."""
    faults, data = document.faults, cast("JsonObject", document.data)
    top = Entry(data, faults, "")
    for key in data.keys() - _FIELDS:
        faults.add("unknown-field", f"`{key}` is not a field of a dataset", field=str(key))
    if data.get("report_evaluators"):
        faults.add("unsupported", "report evaluators are left out", field="report_evaluators", severity="warning")
    entries = limit_cases(top.entries("cases"), faults, "cases")
    ids: set[str] = set()
    cases = [case for number, entry in enumerate(entries, 1) if (case := _read_case(entry, number, ids, document))]
    evaluators = tuple(_read_evaluators(top))
    return EvalSet.from_file(document, top.text("name") or document.path.stem, cases, evaluators=evaluators)


def _read_case(entry: Entry, number: int, ids: set[str], document: SetFile) -> SetCase | None:
    faults, fault_count = entry.faults, len(entry.faults.found)
    id = entry.text("name") or f"case-{number}"
    entry.case = id
    if id in ids:
        entry.fault("duplicate-id", f"the name {id!r} already exists; this case is left out", "name")
    ids.add(id)
    for key in entry.data.keys() - _CASE_FIELDS:
        entry.fault("unknown-field", f"`{key}` is not a field of a case", str(key))
    inputs = _read_inputs(entry, document.path)
    metadata = entry.object("metadata") or {}
    evaluators = tuple(_read_evaluators(entry))
    if faults.has_error(fault_count) or inputs is None:
        return None
    expected = entry.get("expected_output")
    if isinstance(expected, str) and inputs.reference is None:
        last = inputs.turns[-1].model_copy(update={"reference": expected})
        inputs = inputs.model_copy(update={"turns": (*inputs.turns[:-1], last)})
    return SetCase(id=id, input=inputs, evaluators=evaluators, metadata=metadata)


def _read_inputs(entry: Entry, path: Path) -> CaseInput | None:
    inputs = entry.get("inputs")
    if inputs is None:
        entry.fault("no-prompt", "`inputs` is missing", "inputs")
        return None
    if isinstance(inputs, str):
        if not inputs.strip():
            entry.fault("no-prompt", "`inputs` is empty", "inputs")
            return None
        text = entry.text("inputs")
        return None if text is None else CaseInput(turns=(TurnInput(user=text),))
    if not isinstance(inputs, dict):
        entry.fault("type", f"`inputs` is {type_name(inputs)}, not text or an object", "inputs")
        return None
    return _read_object(Entry(cast("JsonObject", inputs), entry.faults, entry.case, "inputs"), path.parent)


def _read_object(entry: Entry, folder: Path) -> CaseInput | None:
    try:
        case = CaseInput.model_validate(dict(entry.data))
    except ValidationError as error:
        for detail in error.errors():
            field = ".".join(map(str, detail["loc"]))
            code: FaultCode = {"extra_forbidden": "unknown-field", "missing": "missing"}.get(detail["type"], "type")  # pyright: ignore[reportAssignmentType]
            entry.fault(code, f"{field}: {detail['msg']}", field)
        return None
    for metric, bound in case.expect.items():
        if metric not in METRICS:
            entry.fault("threshold", f"invalid metric {metric!r}", f"expect.{metric}")
        elif not bound >= 0:
            entry.fault("threshold", f"{bound} is not a bound", f"expect.{metric}")
    files = tuple(_place_file(file, entry, folder) for file in case.files)
    roots = tuple(folder / root for root in case.skill_roots)
    return case.model_copy(update={"files": files, "skill_roots": roots})


def _place_file(file: FileInput, entry: Entry, folder: Path) -> FileInput:
    source = folder / file.source
    target = Path(file.target)
    if not source.resolve().is_relative_to(folder.resolve()):
        entry.fault("file-outside", f"{file.source} is outside of the set's folder", "files")
    elif not source.exists():
        entry.fault("file-missing", f"{file.source} does not exist", "files")
    if target.is_absolute() or ".." in target.parts:
        entry.fault("file-outside", f"{file.target} is not inside the workspace", "files")
    return file.model_copy(update={"source": source})


def _read_evaluators(entry: Entry) -> Iterator[Any]:
    """Yield the evaluators of a case or of the set; add a fault for each invalid one. The registry is closed."""
    value = entry.get("evaluators")
    if value is None:
        return
    if not isinstance(value, list):
        entry.fault("type", f"`evaluators` is {type_name(value)}, not a list", "evaluators")
        return
    from pydantic_evals import Dataset

    from bough.evals.metrics.evaluators import OURS

    for number, spec in enumerate(cast("list[Json]", value)):
        # Each evaluator is read in a separate dataset, since pydantic-evals rejects a file as a whole.
        probe: dict[str, Any] = {"name": "probe", "cases": [{"name": "probe", "inputs": "x", "evaluators": [spec]}]}
        try:
            dataset = Dataset[Any, str, dict[str, Any]].from_dict(probe, custom_evaluator_types=OURS)
        except (ValueError, ExceptionGroup, TypeError) as error:
            _add_evaluator_fault(entry, f"evaluators[{number}]", spec, error)
        else:
            yield from dataset.cases[0].evaluators


def _add_evaluator_fault(entry: Entry, field: str, spec: Json, error: BaseException) -> None:
    names = [spec] if isinstance(spec, str) else list(cast("Mapping[str, Any]", spec or {}))
    name = next(iter(names), "")
    inner = cast("ExceptionGroup[Exception]", error).exceptions[0] if isinstance(error, ExceptionGroup) else error
    text = " ".join(str(inner).split())
    unknown = "custom_evaluator_types" in text
    entry.fault(
        "evaluator-unknown" if unknown else "evaluator-arguments",
        f"the evaluator {str(name)[:80]!r} cannot be made: {text[:300]}",
        field,
    )
