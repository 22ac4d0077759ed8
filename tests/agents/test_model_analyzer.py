"""A model as a judge: plain words count, everything else is unknown."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from pydantic_ai.exceptions import UnexpectedModelBehavior

from bough.agents.model_analyzer import ModelAnalyzer
from bough.guard.request import ToolRequest
from bough.guard.risk import Risk
from bough.testing import ScriptedModel

pytestmark = pytest.mark.anyio


@pytest.mark.parametrize(
    ("answer", "risk"),
    [
        ("HIGH: deletes the home folder", Risk.HIGH),
        ("MEDIUM: writes a file\n", Risk.MEDIUM),
        ("LOW: only reads", Risk.LOW),
        ("UNKNOWN: no idea", Risk.UNKNOWN),
        ("I think it is LOW: fine", Risk.UNKNOWN),
        ("low: fine", Risk.UNKNOWN),
        (UnexpectedModelBehavior("down"), Risk.UNKNOWN),
    ],
)
async def test_what_it_says_is_taken_literally(answer: Any, risk: Risk) -> None:
    analyzer = ModelAnalyzer(ScriptedModel([answer]))
    call = ToolRequest(id="1", tool="run_command", arguments={"command": "rm -rf ~"}, workspace=Path("/work"))
    assessment = await analyzer.analyze(call)
    assert assessment.risk is risk
    assert assessment.reasons


async def test_it_is_not_shown_what_is_too_long() -> None:
    model = ScriptedModel([])
    call = ToolRequest(id="1", tool="write_file", arguments={"content": "x" * 10_000}, workspace=Path("/work"))
    assert (await ModelAnalyzer(model).analyze(call)).risk is Risk.UNKNOWN
    assert model.requests == 0
