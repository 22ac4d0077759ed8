"""Reports: what they show, that nothing in them acts, and that two runs are compared on what both have."""

from __future__ import annotations

import json
import re
import sys
from base64 import b64encode
from collections import Counter
from hashlib import sha256
from html.parser import HTMLParser
from types import FrameType
from typing import Any
from xml.etree import ElementTree

import pytest

from bough.agents.spec import AgentSpec
from bough.errors import InvalidInput
from bough.evals import CaseInput, EvalSet, SetCase, TurnInput, evaluate
from bough.evals.report import html as html_report
from bough.evals.report.compare import compare_runs
from bough.evals.report.html import render_html
from bough.evals.report.view import CaseView
from bough.evals.report.write import render_report, write_reports
from bough.evals.run.folder import RunFolder
from bough.evals.run.read import read_run
from bough.evals.run.summary import AttemptResult, summarize
from bough.evals.score import Score
from bough.settings import Settings
from bough.testing import ScriptedModel, tool_call

pytestmark = pytest.mark.anyio

EVIL = "<script>alert(1)</script><img src=x onerror=alert(2)>\"'\u202e\x00]]>&"


def attempt(case: str, status: str = "passed", n: int = 1, **fields: Any) -> AttemptResult:
    return AttemptResult(case=case, attempt=n, status=status, **fields)


def set_of(*texts: str) -> EvalSet:
    cases = (SetCase(id=text, input=CaseInput(turns=(TurnInput(user=text, reference="good"),))) for text in texts)
    return EvalSet(name=f"set {EVIL}", cases=tuple(cases))


async def run_set(settings: Settings, answers: list[Any], *texts: str, **options: Any) -> RunFolder:
    def note(text: str) -> str:
        """Note a text."""
        return text

    agent = AgentSpec(name="a", model=ScriptedModel(answers), skills=(), tools=(note,))
    options = {"jobs": 1, "metrics": {"output_correctness_score": 1.0}} | options
    run = await evaluate(set_of(*texts), agent, settings=settings, **options)
    return RunFolder(run.folder)


def test_every_mean_says_how_many_it_covers_and_what_is_missing_is_0() -> None:
    half, none = Score("m", 0.5, True, threshold=0.5), Score("m", None, False, threshold=0.5)
    found = summarize(
        [
            attempt("a", scores={"m": half, "shown": Score("shown", 4, None)}),
            attempt("b", "failed", scores={"m": none, "shown": Score("shown", None, None)}),
            attempt("c", "error"),
        ]
    )
    m, shown = found.metrics
    assert (m.mean, m.n, m.of, m.passed) == (0.25, 1, 2, 1)
    assert (shown.mean, shown.n, shown.of, shown.passed) == (4.0, 1, 2, None)
    assert (found.pass_rate, found.errors) == (pytest.approx(1 / 3), 1)


def test_a_price_that_is_not_known_makes_the_sum_unknown() -> None:
    assert summarize([attempt("a", cost_usd=1.0), attempt("b", judge_cost_usd=0.5)]).cost_usd == 1.5
    assert summarize([attempt("a", cost_usd=None), attempt("b")]).cost_usd is None


class Page(HTMLParser):
    """Collects the elements of a page and the addresses in it."""

    def __init__(self) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.addresses: list[str] = []
        self.policy = ""

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        given = dict(attrs)
        self.addresses += [given[key] or "" for key in ("src", "href", "action") if key in given]
        assert not any(name.startswith("on") or name == "style" for name in given), given
        if given.get("http-equiv") == "Content-Security-Policy":
            self.policy = given["content"] or ""


async def test_the_page_makes_no_request_and_nothing_in_it_acts(settings: Settings) -> None:
    folder = await run_set(settings, [tool_call("note", text=EVIL), EVIL, "good"], EVIL, "fine")
    text = (folder.path / "report.html").read_text()
    page = Page()
    page.feed(text)
    assert page.addresses == [] and page.tags.count("script") == 1 and "img" not in page.tags
    assert "link" not in page.tags and "http://" not in text and "https://" not in text
    assert "\u202e" not in text and "\x00" not in text and "\\u202e" in text
    for element, directive in (("style", "style-src"), ("script", "script-src")):
        (content,) = re.findall(rf"<{element}>(.*?)</{element}>", text, re.DOTALL)
        digest = b64encode(sha256(content.encode()).digest()).decode()
        assert f"{directive} 'sha256-{digest}'" in page.policy
    assert page.policy.startswith("default-src 'none'")
    assert text.index("failed</span>") < text.index("passed</span>"), "failures come first"
    assert text.count("<details>") == 3, "two traces and the provenance"


def test_a_page_that_would_be_too_long_leaves_out_traces_of_what_passed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(html_report, "_MAX_TRACE_CHARS", 10_000)
    note: dict[str, Any] = {"attempt": 1, "side": "", "reason": "", "scores": {}, "seconds": 0.0, "steps": 0}
    cases = [
        CaseView(note=note | {"case": f"c{n}", "status": "failed" if n < 2 else "passed"}, requests=("r" * 1500,))
        for n in range(20)
    ]
    report = {"summary": summarize([]).as_dict(), "metrics": {}, "cases": [], "threshold": 1, "passed": False}
    record = {"set": {"name": "s"}, "model": "m"}
    text = render_html(record, report, cases, "memory:")
    assert "14 passed attempts are shown without their traces" in text
    assert text.count("<h4>Request</h4>") == 6


async def test_junit_is_xml_whatever_is_in_it(settings: Settings) -> None:
    folder = await run_set(settings, [EVIL, "good"], EVIL, "fine", "error")
    suite = ElementTree.fromstring((folder.path / "junit.xml").read_text()).find("testsuite")
    assert suite is not None
    assert {k: suite.get(k) for k in ("tests", "failures", "errors", "skipped")} == {
        "tests": "3",
        "failures": "1",
        "errors": "1",
        "skipped": "0",
    }
    assert [[child.tag for child in case] for case in suite] == [["failure"], [], ["error"]]


async def test_markdown_and_json_say_the_same(settings: Settings) -> None:
    folder = await run_set(settings, ["bad", "good"], "a|b", "fine")
    text = (folder.path / "report.md").read_text()
    assert "| 0.500 (0.095 to 0.905) | 1 | 1 | 0 | 0 |" in text
    assert "| a\\|b#1 | failed |" in text
    data = json.loads((folder.path / "report.json").read_text())
    assert data["summary"]["pass_rate"] == 0.5 and [case["case"] for case in data["cases"]] == ["a|b", "fine"]


async def test_a_json_report_is_encoded_without_calls_for_each_of_its_values(settings: Settings) -> None:
    folder = await run_set(settings, ["good"], "a")
    run, notes = await read_run(folder)
    calls = Counter[str]()

    def count(frame: FrameType, event: str, _: Any) -> None:
        calls[frame.f_globals["__name__"]] += event == "call"

    sys.setprofile(count)
    try:
        text = await render_report(folder, run, notes * 100, "json")
    finally:
        sys.setprofile(None)
    assert calls["json.encoder"] == 0, "100 cases would make thousands"
    report = {"schema_version": 1, **run.as_dict(notes * 100)}
    assert text.startswith('{\n "schema_version": 1,\n') and json.loads(text) == json.loads(json.dumps(report))


async def test_reports_are_made_again_from_the_logs_and_are_the_same(settings: Settings) -> None:
    folder = await run_set(settings, ["good"], "a")
    before = {path.name: path.read_text() for path in folder.path.glob("report.*")}
    for name in before:
        (folder.path / name).unlink()
    run, notes = await read_run(folder)
    await write_reports(folder, run, notes)
    assert {path.name: path.read_text() for path in folder.path.glob("report.*")} == before
    with pytest.raises(InvalidInput):
        await render_report(folder, run, notes, "pdf")


async def test_two_runs_are_compared_case_by_case(settings: Settings) -> None:
    texts = [f"c{n}" for n in range(7)]
    a = await run_set(settings, ["bad"] * 6 + ["good"], *texts)
    b = await run_set(settings, ["good"] * 6 + ["bad"], *texts)
    found = await compare_runs(a, b)
    figures = {figure.name: figure for figure in found.figures}
    assert (figures["pass"].p, figures["pass"].n) == (0.125, 7)
    assert figures["pass"].difference == pytest.approx(5 / 7)
    assert [each.case for each in found.worse] == ["c6"] and len(found.better) == 6
    assert (found.cases, found.left_out, found.differs_in) == (7, 0, ())
    other = await run_set(settings, ["good", "good"], "c0", "else")
    partly = await compare_runs(a, other)
    assert (partly.cases, partly.left_out) == (1, 7)
    stranger = await run_set(settings, ["good"], "nothing in common")
    with pytest.raises(InvalidInput, match="no case in common"):
        await compare_runs(a, stranger)
