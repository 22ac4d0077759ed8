"""Reading and checking a skill's own evals: `evals/evals.json` and its trigger queries. Nothing is run here.

Source: Agent Skills documentation, evaluating skills (`evals.json`) and optimizing descriptions (`eval_queries.json`).
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, cast

from bough.errors import BoughError, LimitExceeded
from bough.skills.model import Diagnostic, Skill
from bough.skills.read.resources import read_resource, resolve

EVALS = "evals/evals.json"
QUERIES = (
    "evals/eval_queries.json",
    "evals/train_queries.json",
    "evals/validation_queries.json",
    "eval_queries.json",
)
_SPLITS: Mapping[str, Literal["train", "validation"]] = {
    "evals/train_queries.json": "train",
    "evals/validation_queries.json": "validation",
}


@dataclass(frozen=True, slots=True)
class EvalCase:
    """One task to evaluate a skill with.

    Attributes:
        id: The id in the file, as text; if it has none, the position of the case, from 1.
        files: Relative to the skill's folder.
        expectations: Statements about the output that can be checked.
    """

    id: str
    prompt: str
    expected_output: str = ""
    files: tuple[str, ...] = ()
    expectations: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class TriggerQuery:
    """A user message, and whether it should activate the skill.

    Attributes:
        split: `train` or `validation`, by the name of the file; empty for files without a split.
    """

    query: str
    should_trigger: bool
    split: Literal["train", "validation", ""] = ""


@dataclass(frozen=True, slots=True)
class SkillEvals:
    """All valid evals of a skill, and diagnostics for the invalid ones."""

    cases: tuple[EvalCase, ...] = ()
    queries: tuple[TriggerQuery, ...] = ()
    diagnostics: tuple[Diagnostic, ...] = ()


def read_evals(skill: Skill) -> SkillEvals:
    """Return the evals of a skill; empty if it has none. Invalid files give diagnostics, not exceptions."""
    if skill.folder is None:
        return SkillEvals()
    notes: list[Diagnostic] = []
    cases = _read_cases(skill, skill.folder, notes)
    queries = [query for name in QUERIES for query in _read_queries(skill.folder, name, notes)]
    return SkillEvals(tuple(cases), tuple(queries), tuple(notes))


def _read_json(folder: Path, name: str, notes: list[Diagnostic]) -> Any:
    """Return the contents of a JSON file; None if it does not exist or, with a diagnostic, if it is invalid."""
    if not (folder / name).exists():
        return None
    try:
        return json.loads(read_resource(folder, name, max_bytes=4 << 20))
    except (ValueError, RecursionError) as error:
        notes.append(_make_fault(folder, name, "evals-not-json", f"is not JSON: {error}"))
    except LimitExceeded:
        notes.append(_make_fault(folder, name, "evals-too-long", "is longer than 4 MB"))
    except BoughError as error:
        notes.append(_make_fault(folder, name, "evals-unreadable", error.message))
    return None


def _read_cases(skill: Skill, folder: Path, notes: list[Diagnostic]) -> list[EvalCase]:
    """Return the valid eval cases of a skill; add a diagnostic for each invalid one."""
    data = _read_json(folder, EVALS, notes)
    if data is None:
        return []
    if not isinstance(data, Mapping) or not isinstance(cast("Mapping[str, Any]", data).get("evals"), list):
        notes.append(_make_fault(folder, EVALS, "evals-shape", 'is not {"skill_name": …, "evals": […]}'))
        return []
    content = cast("Mapping[str, Any]", data)
    if content.get("skill_name", skill.name) != skill.name:
        message = f"is for the skill {str(content['skill_name'])[:80]!r}, not {skill.name!r}"
        notes.append(_make_fault(folder, EVALS, "evals-skill-name", message, "warning"))
    cases = [_read_case(number, item, folder, notes) for number, item in enumerate(content["evals"], 1)]
    valid_cases = [case for case in cases if case is not None]
    for case_id, count in Counter(case.id for case in valid_cases).items():
        if count > 1:
            notes.append(_make_fault(folder, EVALS, "evals-duplicate-id", f"has the id {case_id!r} twice"))
    return valid_cases


def _read_case(number: int, item: Any, folder: Path, notes: list[Diagnostic]) -> EvalCase | None:
    """Return an eval case; None, with a diagnostic, if it has no prompt."""
    entry = cast("Mapping[str, Any]", item if isinstance(item, Mapping) else {})
    prompt = entry.get("prompt")
    if not isinstance(prompt, str) or not prompt.strip():
        notes.append(_make_fault(folder, EVALS, "evals-prompt", f"eval {number} has no `prompt`"))
        return None
    expected = entry.get("expected_output", "")
    if not isinstance(expected, str):
        notes.append(_make_fault(folder, EVALS, "evals-shape", f"`expected_output` of eval {number} is not text"))
        expected = ""
    files = _read_texts(entry, "files", number, folder, notes)
    for name in files:
        try:
            resolve(folder, name)
        except BoughError as error:
            notes.append(_make_fault(folder, EVALS, "evals-file", f"eval {number}: {error.message}"))
    expectations = _read_texts(
        entry, "expectations" if "expectations" in entry else "assertions", number, folder, notes
    )
    return EvalCase(str(entry.get("id", number)), prompt, expected, files, expectations)


def _read_texts(
    entry: Mapping[str, Any], field: str, number: int, folder: Path, notes: list[Diagnostic]
) -> tuple[str, ...]:
    value = entry.get(field, [])
    items = cast("list[Any]", value) if isinstance(value, list) else []
    texts = tuple(item for item in items if isinstance(item, str))
    if not isinstance(value, list) or len(texts) < len(items):
        notes.append(_make_fault(folder, EVALS, "evals-shape", f"`{field}` of eval {number} is not a list of texts"))
    return texts


def _read_queries(folder: Path, name: str, notes: list[Diagnostic]) -> list[TriggerQuery]:
    """Return the valid trigger queries in a file; add a diagnostic for each invalid one."""
    data = _read_json(folder, name, notes)
    if data is None:
        return []
    queries: list[TriggerQuery] = []
    items = cast("list[Any]", data) if isinstance(data, list) else [data]
    for number, item in enumerate(items, 1):
        entry = cast("Mapping[str, Any]", item if isinstance(item, Mapping) else {})
        query, should_trigger = entry.get("query"), entry.get("should_trigger")
        if isinstance(query, str) and query.strip() and isinstance(should_trigger, bool):
            queries.append(TriggerQuery(query, should_trigger, _SPLITS.get(name, "")))
        else:
            notes.append(
                _make_fault(
                    folder, name, "evals-query", f'entry {number} is not {{"query": …, "should_trigger": true}}'
                )
            )
    return queries


def _make_fault(folder: Path, name: str, code: str, message: str, severity: Any = "error") -> Diagnostic:
    return Diagnostic(code, severity, message, None, "", str(folder / name))
