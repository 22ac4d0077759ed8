"""Detects the format of a path and reads its set. Invalid content of a file becomes faults, not exceptions."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, cast

from pydantic import ValidationError

from bough.errors import InvalidInput, NotFound
from bough.evals.case import CaseInput, CaseSetup, FileInput, SetCase, TurnInput
from bough.evals.document import Entry, FaultCode, FaultList, SetFile, limit_cases, type_name
from bough.evals.eval_set import EvalSet
from bough.evals.score import METRICS
from bough.types import Json, JsonObject

_SUPPORTED_FORMATS = (
    "a skill's folder, an eval set (.json with eval_cases), trigger queries, or a pydantic-evals file (.yaml)"
)


def read_set(path: str | Path, *, setup: CaseSetup = "chat") -> EvalSet:
    """Return the set of a file or folder: its cases and its faults.

    Args:
        setup: The setup of attempts at the cases of a JSON eval set.

    Raises:
        NotFound: The path does not exist.
        InvalidInput: The path has none of the supported formats.
    """
    file = Path(path)
    if not file.exists():
        raise NotFound(f"{file} does not exist", hint=f"give {_SUPPORTED_FORMATS}")
    if file.is_dir():
        return _read_folder(file)
    if file.suffix not in (".json", ".yaml", ".yml"):
        raise InvalidInput(f"{file} is not an eval set", hint=f"give {_SUPPORTED_FORMATS}")
    faults = FaultList(file)
    document = SetFile(file, faults)
    data = document.data
    if data is None and faults.items:
        return EvalSet.from_file(document, file.stem, ())
    if _has_key(data, "eval_cases", "evalCases"):
        from bough.evals.formats.adk import read_adk_set

        return read_adk_set(document, setup=setup)
    if _has_key(data, "evals") and file.name == "evals.json":
        return _read_folder(file.absolute().parent.parent)
    if isinstance(data, list) and (not data or file.suffix == ".json"):
        return _read_list(document, cast("list[Json]", data), setup)
    if _has_key(data, "cases"):
        return read_pydantic_set(document)
    raise InvalidInput(f"{file} has neither `eval_cases` nor `cases`", hint=f"give {_SUPPORTED_FORMATS}")


def _read_list(document: SetFile, data: list[Json], setup: CaseSetup) -> EvalSet:
    """Return the set of a JSON list: one of ADK's older files, or trigger queries."""
    from bough.evals.formats.adk import is_old_adk_list, read_old_adk_list
    from bough.evals.formats.skill import read_query_file

    return read_old_adk_list(document, setup=setup) if is_old_adk_list(data) else read_query_file(document)


def _read_folder(folder: Path) -> EvalSet:
    if (folder / "SKILL.md").exists() or (folder / "skill.md").exists():
        from bough.evals.formats.skill import read_skill_set

        return read_skill_set(folder)
    if (folder / "task.toml").exists() or any(folder.glob("*/task.toml")):
        raise InvalidInput(f"{folder} contains Harbor tasks", hint=f"`bough eval harbor {folder}` runs them")
    raise InvalidInput(f"{folder} is not a skill", hint=f"give {_SUPPORTED_FORMATS}")


def _has_key(data: Json, *keys: str) -> bool:
    return isinstance(data, dict) and any(key in cast("JsonObject", data) for key in keys)


_FIELDS = frozenset({"name", "cases", "evaluators", "report_evaluators", "$schema"})
_CASE_FIELDS = frozenset({"name", "inputs", "metadata", "expected_output", "evaluators"})


def read_pydantic_set(document: SetFile) -> EvalSet:
    """Return the set of a pydantic-evals file; cases with errors are omitted."""
    faults = document.faults
    data = cast("JsonObject", document.data)
    top = Entry(data, faults, "")
    for key in data.keys() - _FIELDS:
        faults.add("unknown-field", f"`{key}` is not a field of a dataset", field=str(key))
    if data.get("report_evaluators"):
        faults.add("unsupported", "report evaluators are ignored", field="report_evaluators", severity="warning")
    entries = limit_cases(top.entries("cases"), faults, "cases")
    ids: set[str] = set()
    cases = [_read_case(entry, number, ids, document) for number, entry in enumerate(entries, 1)]
    valid_cases = [case for case in cases if case is not None]
    evaluators = tuple(_read_evaluators(top))
    return EvalSet.from_file(document, top.text("name") or document.path.stem, valid_cases, evaluators=evaluators)


def _read_case(entry: Entry, number: int, ids: set[str], document: SetFile) -> SetCase | None:
    """Return a case of a pydantic-evals file; None if it has an error.

    Args:
        number: Position in the file from 1, for the id of a case without a name.
        ids: The ids of the earlier cases. The id of this case is added to it.
    """
    faults = entry.faults
    fault_count = len(faults.items)
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
        last_turn = inputs.turns[-1].model_copy(update={"reference": expected})
        inputs = inputs.model_copy(update={"turns": (*inputs.turns[:-1], last_turn)})
    return SetCase(id=id, input=inputs, evaluators=evaluators, metadata=metadata)


def _read_inputs(entry: Entry, path: Path) -> CaseInput | None:
    """Return the inputs of a case, a text or an object; None if they are invalid."""
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
        entry.fault("type", f"`inputs` is {type_name(inputs)}, neither text nor an object", "inputs")
        return None
    return _read_input_object(Entry(cast("JsonObject", inputs), entry.faults, entry.case, "inputs"), path.parent)


def _read_input_object(entry: Entry, folder: Path) -> CaseInput | None:
    """Return inputs that are an object, with its paths resolved in the folder of the set; None if they are invalid."""
    try:
        case = CaseInput.model_validate(dict(entry.data))
    except ValidationError as error:
        for detail in error.errors():
            field = ".".join(map(str, detail["loc"]))
            code: FaultCode = {"extra_forbidden": "unknown-field", "missing": "missing"}.get(detail["type"], "type")  # pyright: ignore[reportAssignmentType]
            entry.fault(code, f"{field}: {detail['msg']}", field)
        return None
    for metric, threshold in case.expect.items():
        if metric not in METRICS:
            entry.fault("threshold", f"invalid metric {metric!r}", f"expect.{metric}")
        elif not threshold >= 0:
            entry.fault("threshold", f"{threshold} is not a number from 0 on", f"expect.{metric}")
    files = tuple(_resolve_file(file, entry, folder) for file in case.files)
    roots = tuple(folder / root for root in case.skill_roots)
    return case.model_copy(update={"files": files, "skill_roots": roots})


def _resolve_file(file: FileInput, entry: Entry, folder: Path) -> FileInput:
    """Return a file with its source in the folder of the set; add a fault if source or target is invalid."""
    source = folder / file.source
    target = Path(file.target)
    if not source.resolve().is_relative_to(folder.resolve()):
        entry.fault("file-outside", f"{file.source} is outside the folder of the set", "files")
    elif not source.exists():
        entry.fault("file-missing", f"{file.source} does not exist", "files")
    if target.is_absolute() or ".." in target.parts:
        entry.fault("file-outside", f"{file.target} is not inside the workspace", "files")
    return file.model_copy(update={"source": source})


def _read_evaluators(entry: Entry) -> Iterator[Any]:
    """Yield the evaluators of a case or of the set; add a fault for each evaluator that is unknown or invalid."""
    value = entry.get("evaluators")
    if value is None:
        return
    if not isinstance(value, list):
        entry.fault("type", f"`evaluators` is {type_name(value)}, not a list", "evaluators")
        return
    from pydantic_evals import Dataset

    from bough.evals.metrics.evaluators import BOUGH_EVALUATORS

    for number, spec in enumerate(cast("list[Json]", value)):
        # Each evaluator is read in a separate dataset, since one invalid evaluator makes pydantic-evals reject a file.
        probe: dict[str, Any] = {"name": "probe", "cases": [{"name": "probe", "inputs": "x", "evaluators": [spec]}]}
        try:
            dataset = Dataset[Any, str, dict[str, Any]].from_dict(probe, custom_evaluator_types=BOUGH_EVALUATORS)
        except (ValueError, ExceptionGroup, TypeError) as error:
            _add_evaluator_fault(entry, f"evaluators[{number}]", spec, error)
        else:
            yield from dataset.cases[0].evaluators


def _add_evaluator_fault(entry: Entry, field: str, spec: Json, error: BaseException) -> None:
    """Add a fault for an evaluator, which its specification names as a string or as the first key."""
    names = [spec] if isinstance(spec, str) else list(cast("Mapping[str, Any]", spec or {}))
    name = next(iter(names), "")
    inner = cast("ExceptionGroup[Exception]", error).exceptions[0] if isinstance(error, ExceptionGroup) else error
    text = " ".join(str(inner).split())
    is_unknown = "custom_evaluator_types" in text  # the message of pydantic-evals for an unknown name
    entry.fault(
        "evaluator-unknown" if is_unknown else "evaluator-arguments",
        f"the evaluator {str(name)[:80]!r} cannot be created: {text[:300]}",
        field,
    )
