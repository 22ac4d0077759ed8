"""Reads the evals of a skill as cases: `evals/evals.json` and the trigger queries.

Source: Agent Skills documentation, evaluating skills and optimizing descriptions.
"""

from __future__ import annotations

from collections.abc import Sequence
from hashlib import sha256
from pathlib import Path
from typing import cast

from bough.evals.case import CaseInput, FileInput, SetCase, TurnInput
from bough.evals.document import Entry, Fault, FaultCode, FaultList, SetFile, Severity
from bough.evals.eval_set import EvalSet
from bough.evals.metrics.assertions import misspelt_form
from bough.skills.evals import EvalCase, SkillEvals, TriggerQuery, read_evals
from bough.skills.model import Diagnostic, Skill
from bough.skills.read.parse import read_file
from bough.types import Json, JsonObject

_TRAIN_SHARE = 0.6
_FAULT_CODES: dict[str, FaultCode] = {
    "evals-not-json": "not-json",
    "evals-too-long": "too-long",
    "evals-unreadable": "file-missing",
    "evals-shape": "shape",
    "evals-skill-name": "type",
    "evals-duplicate-id": "duplicate-id",
    "evals-prompt": "no-prompt",
    "evals-file": "file-missing",
    "evals-query": "type",
}


def read_skill_set(folder: Path) -> EvalSet:
    """Return the cases of a skill's `evals.json`; `read_trigger_set` returns its trigger queries."""
    skill, faults = load_skill(folder)
    if skill is None or skill.folder is None:
        return EvalSet(name=folder.name, cases=(), faults=tuple(faults), path=folder, format="skill")
    evals = read_evals(skill)
    faults += [
        _fault_from_diagnostic(diagnostic) for diagnostic in evals.diagnostics if "queries" not in diagnostic.path
    ]
    case_faults = FaultList(skill.folder / "evals" / "evals.json")
    cases = _read_cases(skill, evals.cases, case_faults)
    if not evals.cases and not faults:
        case_faults.add("empty", "the skill has no evals")
    return EvalSet(
        name=skill.name,
        cases=tuple(cases),
        faults=(*faults, *case_faults.items),
        path=folder,
        sha256=_digest(evals),
        format="skill",
        description=skill.description,
    )


def read_trigger_set(folder: Path) -> EvalSet:
    """Return the trigger queries of a skill as cases, with `train` or `validation` as `SetCase.split`."""
    skill, faults = load_skill(folder)
    if skill is None:
        return EvalSet(name=folder.name, cases=(), faults=tuple(faults), path=folder, format="triggers")
    evals = read_evals(skill)
    query_faults = [
        _fault_from_diagnostic(diagnostic) for diagnostic in evals.diagnostics if "queries" in diagnostic.path
    ]
    return EvalSet(
        name=f"{skill.name}-triggers",
        cases=tuple(_make_trigger_cases(skill.name, evals.queries)),
        faults=(*faults, *query_faults),
        path=folder,
        sha256=_digest(evals),
        format="triggers",
    )


def read_query_file(document: SetFile) -> EvalSet:
    """Return the cases of a file with a list of `{query, should_trigger}`; the folder of the file names the skill."""
    queries: list[TriggerQuery] = []
    for number, item in enumerate(cast("list[Json]", document.data), 1):
        data = cast("JsonObject", item if isinstance(item, dict) else {})
        entry = Entry(data, document.faults, str(number))
        query = entry.text("query")
        should_trigger = entry.get("should_trigger")
        if query and query.strip() and isinstance(should_trigger, bool):
            queries.append(TriggerQuery(query, should_trigger))
        else:
            entry.fault("type", 'is not {"query": …, "should_trigger": true}')
    if not queries:
        document.faults.add("empty", "has no queries")
    folder = document.path.absolute().parent
    skill = (folder.parent if folder.name == "evals" else folder).name
    return EvalSet.from_file(document, f"{skill}-triggers", _make_trigger_cases(skill, queries), "triggers")


def load_skill(folder: Path) -> tuple[Skill | None, list[Fault]]:
    """Return the skill of a folder, read leniently; None and its faults if it is invalid."""
    file = next((folder / name for name in ("SKILL.md", "skill.md") if (folder / name).exists()), folder / "SKILL.md")
    reading = read_file(file, "lenient")
    if reading.skill is not None:
        return reading.skill, []
    errors = [diagnostic for diagnostic in reading.diagnostics if diagnostic.severity == "error"]
    return None, [Fault("shape", str(file), "", "", error.message) for error in errors]


def split_for_query(query: str, queries: Sequence[str]) -> str:
    """Return `train` or `validation` for a query without a split: 60 to 40, in the stable order of digests.

    Args:
        queries: All queries with the same label, including `query`.
    """
    ordered = sorted(queries, key=lambda text: sha256(text.encode()).hexdigest())
    return "train" if ordered.index(query) < round(_TRAIN_SHARE * len(ordered)) else "validation"


def _read_cases(skill: Skill, cases: Sequence[EvalCase], faults: FaultList) -> list[SetCase]:
    """Return the valid cases of `evals.json`; add the faults of the others."""
    set_cases: list[SetCase] = []
    ids: set[str] = set()
    for case in cases:
        fault_count = len(faults.items)
        if case.id in ids:
            continue  # read_evals reported it
        ids.add(case.id)
        files = _resolve_files(skill, case, faults)
        for text in case.expectations:
            form = misspelt_form(text)
            if form is not None:
                message = f"the judge decides {text[:80]!r}; did you mean `{form}: …`?"
                faults.add("shape", message, case=case.id, field="assertions", severity="warning")
        if faults.has_error(fault_count):
            continue
        set_cases.append(
            SetCase(
                id=case.id,
                input=CaseInput(
                    turns=(TurnInput(user=case.prompt),),
                    files=tuple(files),
                    expected=case.expected_output,
                    checks=case.expectations,
                    skill=skill.name,
                    setup="skill",
                ),
            )
        )
    return set_cases


def _resolve_files(skill: Skill, case: EvalCase, faults: FaultList) -> list[FileInput]:
    """Return the files of a case with their workspace paths, without a leading `evals/files/` or `evals/`."""
    by_target: dict[str, FileInput] = {}
    for name in case.files:
        target = name.removeprefix("./").removeprefix("evals/").removeprefix("files/")
        source = (skill.folder or Path()) / name
        if not source.exists():
            faults.add("file-missing", f"{name} does not exist", case=case.id, field="files")
        elif target in by_target:
            faults.add(
                "duplicate-id", f"{name} and {by_target[target].source.name} both have the path {target}", case=case.id
            )
        else:
            by_target[target] = FileInput(source=source, target=target)
    return list(by_target.values())


def _make_trigger_cases(skill: str, queries: Sequence[TriggerQuery]) -> list[SetCase]:
    """Return a case for each query; queries without a split are divided within their label."""
    cases: list[SetCase] = []
    without_split = [query for query in queries if not query.split]
    for number, query in enumerate(queries, 1):
        same_label = [other.query for other in without_split if other.should_trigger == query.should_trigger]
        cases.append(
            SetCase(
                id=f"q{number}",
                input=CaseInput(turns=(TurnInput(user=query.query),), skill=skill, should_trigger=query.should_trigger),
                split=query.split or split_for_query(query.query, same_label),
            )
        )
    return cases


def _fault_from_diagnostic(diagnostic: Diagnostic) -> Fault:
    code, severity = _FAULT_CODES.get(diagnostic.code, "shape"), cast("Severity", diagnostic.severity)
    return Fault(code, diagnostic.path, "", "", diagnostic.message, severity)


def _digest(evals: SkillEvals) -> str:
    return sha256(repr((evals.cases, evals.queries)).encode()).hexdigest()
