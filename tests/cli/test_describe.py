"""Events in words, as `conv show` and the progress of a run have them."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from bough.cli.describe import describe, describe_event, render_skip
from bough.events.codec import stub

GOLDEN = sorted((Path(__file__).parents[1] / "golden" / "events").glob("v*/*.json"))


@pytest.mark.parametrize("path", GOLDEN, ids=lambda path: path.stem)
def test_every_kind_of_event_has_its_line_erased_or_not(path: Path) -> None:
    stored = json.loads(path.read_text("utf-8"))
    for raw in (stored["raw"], stub(stored["kind"], stored["raw"].encode())):
        assert describe_event({"kind": stored["kind"], **json.loads(raw)})[0] != stored["kind"], "an unknown kind"
        first, *_ = describe({"seq": 7, "kind": stored["kind"], **json.loads(raw)})
        assert first.plain.startswith("    7  ")


def test_a_skill_that_was_left_out_says_why_and_what_helps() -> None:
    event = {
        "kind": "SkillSkipped",
        "name": "big",
        "code": "limit_exceeded",
        "message": "too long",
        "hint": "shorten it",
    }
    assert describe_event(event) == ("skipped", [("big", "strong"), ("  too long", "warn")], "shorten it")
    assert "skipped: too long" in render_skip(event).plain


def test_messages_are_shown_in_words() -> None:
    image = {"kind": "binary", "media_type": "image/png", "data": "aGk="}
    request = {"kind": "request", "parts": [{"part_kind": "user-prompt", "content": ["Look:", image, {"a": 1}]}]}
    assert describe_event({"kind": "MessageStored", "message": request}) == (
        "user", [("Look:", "strong")], '[image/png]\n{"a": 1}',
    )  # fmt: skip
    result = {"kind": "request", "parts": [{"part_kind": "tool-return", "tool_name": "t", "content": {"n": 1}}]}
    assert describe_event({"kind": "MessageStored", "message": result}) == ("result", [("t", "")], '{"n": 1}')
    response = {"kind": "response", "model_name": "m", "parts": [{"part_kind": "text", "content": "Fine."}]}
    word, summary, text = describe_event({"kind": "MessageStored", "message": response})
    assert (word, summary[0][0], text) == ("model", "m", "Fine.")
