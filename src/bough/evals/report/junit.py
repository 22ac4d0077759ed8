"""Renders runs as JUnit XML for continuous integration: only attempts that decide the result are test cases."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from xml.sax.saxutils import escape, quoteattr

from bough.evals.run.note import result_from_note
from bough.evals.run.result import EvalRun
from bough.evals.run.summary import SIDE_FIGURES, rate_query
from bough.types import JsonObject

_INVALID = re.compile("[^\t\n\r\u0020-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")
_KINDS = {"failed": "failure", "error": "error", "skipped": "skipped"}


def render_junit(runs: Sequence[tuple[JsonObject, EvalRun, Sequence[JsonObject]]]) -> str:
    """Return one test suite for each run; a run comes with its record and its notes.

    If a run compares sides, the first one gives the test cases and the others are properties. A trigger query is one
    test case, however often it ran.
    """
    lines = ['<?xml version="1.0" encoding="UTF-8"?>', "<testsuites>"]
    for run in runs:
        lines += _render_suite(*run)
    return "\n".join([*lines, "</testsuites>", ""])


def _render_suite(record: JsonObject, run: EvalRun, notes: Sequence[JsonObject]) -> Iterator[str]:
    suite = str(record["set"]["name"])
    sides: list[str] = record.get("sides") or [""]
    decisive = [note for note in notes if note.get("side", "") == sides[0]]
    cases = list(_merge_queries(decisive)) if record.get("kind") == "triggers" else decisive
    states = [str(note["status"]) for note in cases]
    counts = " ".join(
        f'{name}="{number}"'
        for name, number in (
            ("tests", len(cases)),
            ("failures", states.count("failed")),
            ("errors", states.count("error")),
            ("skipped", states.count("skipped")),
        )
    )
    yield f'<testsuite name={_attribute(suite)} {counts} time="{run.summary.seconds}">'
    if run.sides:
        yield "<properties>"
        for side, figures in run.sides.items():
            for figure in SIDE_FIGURES:
                value = figures[figure] if side == "delta" else figures[figure]["mean"]
                yield f'<property name={_attribute(f"{side}.{figure}")} value="{value}"/>'
        yield "</properties>"
    yield from (_render_case(suite, note) for note in cases)
    yield "</testsuite>"


def _merge_queries(notes: Sequence[JsonObject]) -> Iterator[JsonObject]:
    """Yield one note for each trigger query: passed if more than half of its attempts were right."""
    by_case: dict[str, list[JsonObject]] = {}
    for note in notes:
        by_case.setdefault(str(note["case"]), []).append(note)
    for group in by_case.values():
        rate = rate_query([result_from_note(note) for note in group])
        states = {str(note["status"]) for note in group}
        merged = group[0] | {"seconds": sum(float(note.get("seconds") or 0.0) for note in group)}
        if rate > 0.5:
            yield merged | {"status": "passed"}
        elif len(states) == 1 and "failed" not in states:
            yield merged
        else:
            reason = f"right in {rate:.2f} of {len(group)} attempts, more than 0.50 is needed"
            yield merged | {"status": "failed", "reason": reason}


def _render_case(suite: str, note: JsonObject) -> str:
    side = f"@{note['side']}" if note.get("side") else ""
    name = _attribute(f"{note['case']}{side}#{note['attempt']}")
    head = f'<testcase classname={_attribute(suite)} name={name} time="{note.get("seconds", 0.0)}"'
    kind = _KINDS.get(str(note["status"]))
    if kind is None:
        return f"{head}/>"
    reason = str(note.get("reason", ""))
    return f"{head}><{kind} message={_attribute(reason[:500])}>{escape(_INVALID.sub('', reason))}</{kind}></testcase>"


def _attribute(text: str) -> str:
    return quoteattr(_INVALID.sub("", text))
