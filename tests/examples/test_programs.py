"""The programs of `examples/programs` run offline as they are, and print this."""

from __future__ import annotations

import asyncio
import re
import runpy
import sys
from collections.abc import Sequence
from pathlib import Path
from textwrap import dedent
from typing import Any

import httpx
import pytest

from bough.testing.postgres import make_database

FOLDER = Path(__file__).parents[2] / "examples" / "programs"
PROGRAMS = sorted(path.parent.name for path in FOLDER.glob("*/main.py"))
NEEDS = {"notebook": "bubblewrap"}

PRINTED = {
    "batch": """\
        150 documents answered, 50 left
        151 requests, 0 left
        200 documents answered, 0 left
        [('invoice', 66), ('login', 67), ('refund', 67)]
        """,
    "notebook": """\
        [('tea', 9.5), ('coffee', 3.2)]
        9.5
        """,
    "pipeline": """\
        july       completed  {'paid_eur': 900}
        august     completed  {'paid_eur': 900}
        september  failed     the model failed: ValueError: this invoice has no amount; run it again: nothing is lost
        october    completed  {'paid_eur': 950}
        3 payments, 1 to look at
        """,
    "prompt_test": """\
        Where is parcel 17?
          A Thank you for your question! I have looked, and parcel 17 is in Linz.
          B parcel 17 is in Linz
          output tokens: 23 and 13
        Send parcel 18 again.
          A Thank you for your question! I have looked, and parcel 18 will be there tomorrow.
          B parcel 18 will be there tomorrow
          output tokens: 24 and 14
        Where is parcel 19?
          A Thank you for your question! I have looked, and parcel 19 is in Linz.
          B parcel 19 is in Linz
          output tokens: 23 and 13
        sent: parcel 18
        """,
    "review_bot": """\
        202 1 UserMessage
        2 StateChanged
        3 ModelResponded
        4 ToolCalled
        5 ToolReturned
        6 ModelResponded
        7 ToolReturned
        8 OutputGiven
        9 StateChanged
        review: {'approve': False, 'summary': 'One open file.'}
        line 3: This file is never closed.
        there is no conversation c19b9e36-29d5-508b-8419-b8b6185a3459
        """,
    "support": """\
        Noted: My red bicycle lost its bell on Grove Road. A colleague will call you.
        Noted: When is my repair ready. A colleague will call you.
        ada 5: Thank you, the new bell rings well.
        ada 1: My red bicycle lost its bell on Grove Road.
        erased 9 events, compacted: True
        ['bob']
        False
        """,
}


def _run(name: str, *arguments: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.setattr(sys, "argv", ["main.py", *arguments])
    runpy.run_path(str(FOLDER / name / "main.py"), run_name="__main__")
    return capsys.readouterr().out


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=pytest.mark.needs(NEEDS[name]) if name in NEEDS else ()) for name in PROGRAMS]
)
def test_a_program_prints_what_is_expected(
    name: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("BOUGH_HOME", str(tmp_path / "home"))
    monkeypatch.delenv("MODEL", raising=False)
    assert _run(name, capsys=capsys, monkeypatch=monkeypatch) == dedent(PRINTED[name])


async def _post_reviews(app: Any, texts: Sequence[str]) -> tuple[list[int], set[str]]:
    """Send reviews at the same time, and return their statuses and the messages that the log has."""
    client = httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://bot", timeout=60)
    async with app.router.lifespan_context(app), client:
        first = await client.post("/pulls/7/reviews", content="first", headers={"Idempotency-Key": "a"})
        assert first.status_code == 202
        await client.get("/pulls/7/events")
        again = await client.post("/pulls/7/reviews", content="first", headers={"Idempotency-Key": "a"})
        assert again.status_code == 202
        posted = await asyncio.gather(*(client.post("/pulls/7/reviews", content=text) for text in texts))
        await client.get("/pulls/7/events")
        (record,) = (await app.state.store.list()).items
        events = [stored async for stored in app.state.store.read(record.id, kinds=["UserMessage"])]
        messages = [stored.event.plain for stored in events]
        assert len(messages) == len(set(messages))
        return [response.status_code for response in posted], set(messages)


def test_the_review_bot_loses_no_request_and_adds_a_repeated_one_once(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("BOUGH_HOME", str(tmp_path / "home"))
    monkeypatch.setenv("STORE", f"sqlite:///{tmp_path / 'reviews.db'}")
    monkeypatch.delenv("MODEL", raising=False)
    app = runpy.run_path(str(FOLDER / "review_bot" / "main.py"))["app"]
    texts = [f"change {number}" for number in range(4)]
    statuses, messages = asyncio.run(_post_reviews(app, texts))
    assert messages == {"first", *texts}
    assert set(statuses) <= {202, 409}


def test_the_pipeline_runs_on_postgres(
    postgres: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("BOUGH_HOME", str(tmp_path / "home"))
    printed = _run("pipeline", make_database(postgres), capsys=capsys, monkeypatch=monkeypatch)
    assert printed == dedent(PRINTED["pipeline"])


@pytest.mark.parametrize("name", PROGRAMS)
def test_a_program_is_short_and_uses_public_names_only(name: str) -> None:
    lines = (FOLDER / name / "main.py").read_text("utf-8").splitlines()
    assert len(lines) < 100
    assert len((FOLDER / name / "README.md").read_text("utf-8").splitlines()) <= 12
    assert not [line for line in lines if re.search(r"\bbough[\w.]*\._|(?<!self)\._[a-z]", line)]
