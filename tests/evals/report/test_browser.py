"""The report in a real browser: it can be used by everybody, asks for nothing, and runs no code but its own."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from bough.agents.spec import AgentSpec
from bough.evals import CaseInput, EvalSet, Rubric, SetCase, TurnInput, evaluate
from bough.evals.judge.judge import Judge
from bough.settings import Settings
from bough.testing import ScriptedModel, tool_call

from .chromium import browser_page

EVIL = "<script>alert(1)</script><img src='http://127.0.0.1:9/x.png' onerror=alert(2)>\"'\u202e</pre></article>"


def look_up(word: str) -> str:
    """Look a word up."""
    if word == "missing":
        raise ValueError(EVIL)
    return EVIL


async def make_report(settings: Settings) -> Path:
    """Return the report of a run with a pass, a failure, an error, verdicts and texts that would like to act."""
    rubric = Rubric("r", f"It says {EVIL}")
    cases = (
        SetCase(id="judged", input=CaseInput(turns=(TurnInput(user=EVIL),), rubrics=(rubric,))),
        SetCase(id=f"failing_{'long_' * 20} {EVIL}", input=CaseInput(turns=(TurnInput(user="b", reference="good"),))),
        SetCase(id="broken", input=CaseInput(turns=(TurnInput(user="c"),))),
    )
    verdict = '{"verdicts": [{"rubric_id": "r1", "property": "p", "rationale": "<b>because</b>", "verdict": "yes"}]}'
    answers = [tool_call("look_up", word="x"), "good", tool_call("look_up", word="missing"), EVIL]
    run = await evaluate(
        EvalSet(name=EVIL, cases=cases),
        AgentSpec(name="a", model=ScriptedModel(answers), skills=(), tools=(look_up,)),
        settings=settings,
        jobs=1,
        judge=Judge(ScriptedModel([verdict]), 1),
        metrics={"output_correctness_score": 1.0},
    )
    assert [each.status for each in run.cases] == ["passed", "failed", "error"], [each.reason for each in run.cases]
    return run.folder / "report.html"


@pytest.mark.needs("chromium")
def test_the_report_passes_axe_and_makes_no_request(bough_home: Path, tmp_path: Path) -> None:
    report = asyncio.run(make_report(Settings.load(home=bough_home, env={}, cwd=tmp_path)))
    with browser_page(tmp_path / "browser") as page:
        for dark in (False, True):
            page.open(report, dark=dark)
            page.evaluate("document.querySelectorAll('details').forEach(each => each.open = true)")
            assert page.find_violations() == []
            assert page.requests == [report.as_uri()], "it is one file, whatever the texts in it ask for"
        assert page.complaints == [], "its own style and script are let through, and there are no others"
        shown = "[...document.querySelectorAll('#cases > article')].filter(each => !each.hidden).length"
        assert page.evaluate(shown) == 3
        typing = "{const typed = document.getElementById('filter'); typed.value = 'BROKEN'; "
        page.evaluate(typing + "typed.dispatchEvent(new Event('input')); true}")
        assert page.evaluate(shown) == 1
        assert page.evaluate("document.images.length") == 0
        assert page.evaluate("document.querySelector('#cases > article').className") == "failed", "failures come first"


@pytest.mark.needs("chromium")
def test_the_report_fits_a_phone(bough_home: Path, tmp_path: Path) -> None:
    """The page does not scroll sideways at 400 pixels; a wide table does so itself, and its words stay whole."""
    report = asyncio.run(make_report(Settings.load(home=bough_home, env={}, cwd=tmp_path)))
    with browser_page(tmp_path / "browser") as page:
        page.call("Emulation.setDeviceMetricsOverride", width=400, height=800, deviceScaleFactor=1, mobile=True)
        page.open(report)
        page.evaluate("document.querySelectorAll('details').forEach(each => each.open = true)")
        assert page.evaluate("document.documentElement.scrollWidth") == 400
        lines = "[...document.querySelectorAll('thead th')].map(cell => cell.textContent.split(' ').length"
        lines += " - Math.round(cell.getBoundingClientRect().height / 24))"
        assert all(spare >= 0 for spare in page.evaluate(lines)), "a heading has a line for each word at most"
        assert page.find_violations() == [], "what scrolls can be reached with the keyboard"


@pytest.mark.needs("chromium")
def test_a_page_that_is_not_right_is_told(tmp_path: Path) -> None:
    """The test above could not fail where the browser found nothing wrong with anything."""
    bad = tmp_path / "bad.html"
    bad.write_text("<body><img src='http://127.0.0.1:9/x.png'><input><p style='color:#ccc'>pale")
    with browser_page(tmp_path / "browser") as page:
        page.open(bad)
        assert {each.partition(":")[0] for each in page.find_violations()} >= {"color-contrast", "image-alt", "label"}
        assert "http://127.0.0.1:9/x.png" in page.requests
