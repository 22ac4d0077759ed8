"""Rows of every kind of event: what they show, and that nothing of their contents becomes HTML."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from datetime import UTC, datetime
from html.parser import HTMLParser
from pathlib import Path
from typing import Any, get_args

import pytest

from bough.events.model import Event
from bough.html.environment import make_environment
from bough.html.rows import CallRow, MessageRow, QuietRow, Row, Setting, find_rows, seqs_of
from bough.html.timeline import TurnPart, add_up, build_rows, group_turns

GOLDEN = Path(__file__).parents[1] / "golden" / "events"
KINDS = sorted(get_args(part)[0].__name__ if get_args(part) else part.__name__ for part in get_args(get_args(Event)[0]))
SETTING = Setting(base="/c/1", agent="coder", max_field_chars=8192, now=datetime(2026, 11, 28, tzinfo=UTC))
CANARY = (
    'lunch<script>window.canary=1</script><img src=x onerror=canary=1>"\' onmouseover="canary=1" {{ 7*7 }} {% x %}'
    "</pre></script><svg/onload=canary=1> [go](javascript:canary=1) ![i](data:image/svg+xml,x) <!-- ]]> "
    "\u202e\x00\u200b\ud800\U000e0041 <header class=top>bough</header>"
)
TAGS = frozenset({
    "a", "article", "b", "bdi", "br", "blockquote", "code", "dd", "del", "details", "div", "dl", "dt", "em", "footer",
    "h2", "h3", "h4", "h5", "h6", "header", "hr", "ins", "kbd", "li", "ol", "p", "pre", "section", "span", "strong",
    "summary", "svg", "table", "tbody", "td", "th", "thead", "time", "tr", "ul", "use",
})  # fmt: skip
ATTRIBUTES = frozenset({
    "aria-hidden", "aria-label", "class", "data-error", "data-in", "data-n", "data-turn", "datetime", "hidden", "dir",
    "href", "id", "open", "rel", "role", "scope", "tabindex", "title",
})  # fmt: skip
WORDS_OF_MACROS = frozenset({
    "You", "Edit", "and", "run", "from", "here", "Fork", "beside", "More", "Show", "all", "lines", "Thought", "change",
    "changes", "Result", "Arguments", "none", "Nov", "open", "coder", "Raise",
})  # fmt: skip
"""Labels that each row of a macro has, the agent of all rows, and parts of dates: nobody looks for them."""

OUR_CLASSES = re.compile(r"[a-z ]*")


class Reader(HTMLParser):
    """Collects the text of HTML, and refuses elements, attributes and addresses that no macro writes."""

    def __init__(self) -> None:
        super().__init__()
        self.text = ""
        self.texts: list[str] = []
        self.elements = 0
        self.ids: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        assert tag in TAGS, tag
        self.elements += 1
        for name, value in attrs:
            assert name in ATTRIBUTES, (tag, name)
            if name == "href":
                assert re.match(r"(https?://|mailto:|/|#|\?)", value or ""), value
            elif name == "class":
                assert OUR_CLASSES.fullmatch(value or ""), value
            elif name == "id":
                self.ids.append(value or "")
                assert re.fullmatch(r"(e|turn-|sum-)\d+", value or ""), value

    def handle_data(self, data: str) -> None:
        self.text += data
        self.texts.append(data)

    def handle_comment(self, data: str) -> None:
        raise AssertionError(data)


def read(html: str) -> Reader:
    reader = Reader()
    reader.feed(html)
    reader.close()
    return reader


MACROS = make_environment().from_string(
    "{% import 'html/rows.html' as rows %}{% for part in parts %}{{ rows.part(part, setting) }}{% endfor %}",
    globals={"icons": "/static/icons.svg"},
)


def show(parts: list[TurnPart], setting: Setting = SETTING) -> str:
    return MACROS.render(parts=parts, setting=setting)


def make_rows(*events: dict[str, Any], setting: Setting = SETTING) -> list[Row]:
    numbered = [{"seq": seq, "ts": "2026-11-28T10:00:00+00:00", **event} for seq, event in enumerate(events)]
    turns = {event["seq"]: number for number, event in enumerate(
        [event for event in numbered if event["kind"] == "UserMessage"], 1)}  # fmt: skip
    return build_rows(numbered, 0, len(numbered), turns, setting)


def render(*events: dict[str, Any], setting: Setting = SETTING) -> Reader:
    return read(show(group_turns(make_rows(*events, setting=setting), 0), setting))


def golden(kind: str) -> Iterator[dict[str, Any]]:
    for path in sorted(GOLDEN.glob(f"*/{kind}.json")):
        document = json.loads(path.read_text())
        yield {"kind": kind, "id": document["id"], "ts": document["ts"], **json.loads(document["raw"])}


def replace_texts(value: Any, canary: str) -> Any:
    match value:
        case dict():
            return {name: replace_texts(item, canary) for name, item in value.items()}
        case list():
            return [replace_texts(item, canary) for item in value]
        case str():
            return canary
        case _:
            return value


def keep_types(event: dict[str, Any], hostile: dict[str, Any]) -> dict[str, Any]:
    """Return the hostile event with the fields that decide how it is read."""
    fixed = ("kind", "type", "part_kind", "tool_call_id", "verdict", "trigger", "status", "state")

    def keep(original: Any, changed: Any) -> Any:
        if isinstance(original, dict):
            return {k: original[k] if k in fixed else keep(original[k], changed[k]) for k in original}
        if isinstance(original, list):
            return [keep(a, b) for a, b in zip(original, changed, strict=True)]
        return changed

    return keep(event, hostile)


def test_the_golden_files_have_every_kind() -> None:
    assert {path.stem for path in GOLDEN.glob("*/*.json")} == set(KINDS)


@pytest.mark.parametrize("kind", KINDS)
def test_every_event_has_one_row(kind: str) -> None:
    for event in golden(kind):
        reader = render(event)
        assert reader.ids[-1] == "e0" or "e0" in reader.ids
        assert reader.text.strip()


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("types", ["kept", "replaced"])
def test_contents_never_become_html(kind: str, types: str) -> None:
    for event in golden(kind):
        hostile = replace_texts(event, CANARY)
        hostile = keep_types(event, hostile) if types == "kept" else hostile | {"kind": kind}
        reader = render(hostile)
        assert "lunch<script>" in reader.text
        assert not re.search("[\x00\u202e\u200b\ud800\U000e0041]", reader.text)


@pytest.mark.parametrize("kind", [*KINDS, "Tomorrow"])
@pytest.mark.parametrize("junk", [None, 7, True, "x", ["x"], {"x": 1}])
def test_damaged_fields_are_no_error(kind: str, junk: object) -> None:
    fields = {name for event in golden(kind) for name in event} | {"content", "response", "changes"}
    render({"kind": kind})
    render({"kind": kind} | {name: junk for name in fields if name not in ("kind", "seq")})


@pytest.mark.parametrize("kind", [*KINDS, "Tomorrow"])
def test_each_word_of_a_row_is_found(kind: str) -> None:
    events = [*golden(kind)] or [{"kind": kind, "words": {"lunch": [1, "dinner"]}}]
    for event in events:
        words = {word for text in render(event).texts for word in re.findall(r"[^\W\d_]{3,}", text)} - WORDS_OF_MACROS
        rows = make_rows(event)
        assert [word for word in sorted(words) if find_rows(rows, word.upper()) != [0]] == []
        assert find_rows(rows, "nothing-has-this") == []


def test_words_that_only_a_row_has_are_found() -> None:
    waiting = {"c": {"tool": "run_command", "arguments": {"command": "rm"}, "risk": "HIGH", "reason": "removes"}}
    rows = make_rows(
        {"kind": "PauseRequested", "by": "ada"},
        {"kind": "StateChanged", "changes": {"waiting": waiting}},
        called("d", "lookup", path="a.txt"),
        {"kind": "ToolInterrupted", "tool_call_id": "d"},
        setting=Setting(waiting=waiting),
    )
    for text, seq in (
        ("pause requested by", 0),
        ("requires approval", 1),
        ("high risk", 1),
        ("removes", 1),
        ("lost", 2),
    ):
        assert find_rows(rows, text) == [seq], text


def test_an_unknown_kind_is_shown_as_json() -> None:
    reader = render({"kind": "Tomorrow", "schema_version": 9, "words": {"lunch": [1, 2]}})
    assert "Tomorrow" in reader.text
    assert "lunch" in reader.text


def response(*calls: tuple[str, str], text: str = "", **fields: Any) -> dict[str, Any]:
    parts: list[dict[str, Any]] = [{"part_kind": "text", "content": text}] if text else []
    parts += [
        {"part_kind": "tool-call", "tool_name": tool, "args": '{"path": "a.txt"}', "tool_call_id": id}
        for id, tool in calls
    ]
    return {"kind": "ModelResponded", "response": {"parts": parts}, **fields}


def called(id: str, tool: str, **arguments: Any) -> dict[str, Any]:
    return {"kind": "ToolCalled", "tool_call_id": id, "tool": tool, "arguments": arguments}


def returned(id: str, tool: str, result: Any) -> dict[str, Any]:
    return {"kind": "ToolReturned", "tool_call_id": id, "tool": tool, "result": result, "duration_seconds": 0.5}


def message(text: str) -> dict[str, Any]:
    return {"kind": "UserMessage", "content": [{"type": "text", "text": text}]}


def test_a_call_its_script_and_its_outcome_are_one_row() -> None:
    script = {"kind": "ScriptRan", "tool_call_id": "c", "skill": "s", "script": "a.py", "exit_code": 0,
              "isolation": "namespaces", "max_rss_bytes": 41_000_000}  # fmt: skip
    rows = make_rows(response(("c", "run_skill_script")), called("c", "run_skill_script", script="a.py"), script,
                     returned("c", "run_skill_script", {"stdout": "hello", "exit_code": 0}))  # fmt: skip
    row = rows[1]
    assert isinstance(row, CallRow)
    assert (row.seqs, row.sign, row.subject) == ((1, 2, 3), "ok", "a.py")
    assert row.result_facts == ("exit 0", "namespaces", "41 MB")
    assert [other.template for other in rows] == ["step", "call", "hidden", "hidden"]


def test_parallel_calls_end_in_any_order() -> None:
    rows = make_rows(response(("a", "t"), ("b", "t")), called("a", "t"), called("b", "t"), returned("b", "t", "B"),
                     returned("a", "t", "A"))  # fmt: skip
    assert [(row.seqs, row.result) for row in rows if isinstance(row, CallRow)] == [((1, 4), "A"), ((2, 3), "B")]


def test_an_id_that_a_later_response_uses_again_is_another_call() -> None:
    rows = make_rows(response(("a", "t")), called("a", "t"), returned("a", "t", 1), response(("a", "t")),
                     called("a", "t"), returned("a", "t", 2))  # fmt: skip
    assert [(row.seqs, row.result) for row in rows if isinstance(row, CallRow)] == [((1, 2), 1), ((4, 5), 2)]


def test_a_call_that_never_started_has_the_arguments_of_its_response() -> None:
    rejected = {"kind": "ToolRejected", "tool_call_id": "c", "tool": "write_file", "by": "ada", "reason": "not now"}
    row = make_rows(response(("c", "write_file")), rejected)[1]
    assert isinstance(row, CallRow)
    assert (row.sign, row.arguments, row.error) == ("rejected", {"path": "a.txt"}, "not now")
    assert row.notes == ("rejected by ada",)


def test_an_outcome_whose_call_was_not_read_is_a_row() -> None:
    row = make_rows(returned("c", "t", "x"))[0]
    assert isinstance(row, CallRow)
    assert (row.seqs, row.tool, row.result) == ((0,), "t", "x")


def test_rows_of_a_range_know_outcomes_after_it() -> None:
    events = [response(("c", "t")), called("c", "t"), message("next"), returned("c", "t", "late")]
    numbered = [{"seq": seq, "ts": "", **event} for seq, event in enumerate(events)]
    before = build_rows(numbered, 0, 2, {}, SETTING)
    after = build_rows(numbered, 2, 4, {}, SETTING)
    assert [row.template for row in (*before, *after)] == ["step", "call", "message", "hidden"]
    assert isinstance(before[1], CallRow)
    assert before[1].result == "late"


def test_each_event_belongs_to_one_row() -> None:
    events = [event for kind in KINDS for event in golden(kind)]
    rows = make_rows(*events)
    shown = [row for row in rows if row.template != "hidden"]
    assert seqs_of(shown) == list(range(len(events)))


def test_bookkeeping_is_folded_and_rules_stand_alone() -> None:
    rows = make_rows(
        {"kind": "StateChanged", "changes": {"status": "running"}},
        {"kind": "TaskChanged", "task_id": "t", "state": "running"},
        {"kind": "StateChanged", "changes": {"policies": {"policy": "always"}}},
        {"kind": "StateChanged", "changes": {"status": "finished"}},
    )
    assert [(row.template, row.seqs) for row in rows] == [("quiet", (0, 1)), ("line", (2,)), ("quiet", (3,))]
    assert isinstance(rows[0], QuietRow)


def test_a_call_that_waits_is_shown_while_it_waits() -> None:
    asked = {
        "kind": "StateChanged",
        "changes": {"status": "waiting_for_confirmation", "waiting": {"c/1": {"tool": "t"}}},
    }
    waiting = {"c/1": {"tool": "t", "arguments": {"command": "rm -rf /"}, "risk": "HIGH", "reason": "deletes files"}}
    assert make_rows(asked)[0].template == "quiet"
    setting = Setting(base="/c/1", waiting=waiting)
    assert make_rows(asked, setting=setting)[0].template == "ask"
    html = show(group_turns(make_rows(asked, setting=setting), 0), setting)
    assert 'href="/approvals/1/c%2F1"' in html
    assert "deletes files" in read(html).text


def test_a_folded_row_has_at_most_twelve_elements_beside_its_contents() -> None:
    html = show(group_turns(make_rows(called("c", "t", path="a"), returned("c", "t", "x")), 0))
    folded = re.sub(r"(?s)</summary>.*?</details>", "</summary></details>", html)
    assert read(folded).elements <= 12 + 2  # the section, and the hidden article of the outcome


def test_long_fields_are_cut_and_linked_on_a_page_and_whole_in_a_file() -> None:
    long = "word " * 4000
    page = show(group_turns(make_rows(called("c", "t"), returned("c", "t", long)), 0))
    assert 'href="/c/1/e/1"' in page
    assert len(page) < 2 * 8192
    file = show(group_turns(make_rows(called("c", "t"), returned("c", "t", long), setting=Setting()), 0), Setting())
    assert read(file).text.count("word") == 4000
    assert "/e/" not in file


def test_turns_group_rows_and_totals_count_edits_that_returned() -> None:
    usage = {"input_tokens": 10, "output_tokens": 2, "cost_usd": 0.01}
    events = [
        message("go"),
        response(("a", "edit_file"), usage=usage),
        called("a", "edit_file", path="x.py", old="1\n2", new="1\n3\n4"),
        returned("a", "edit_file", "ok"),
        called("b", "write_file", path="y.py", content="1"),
        {"kind": "ToolFailed", "tool_call_id": "b", "tool": "write_file", "error": "full"},
        message("again"),
    ]
    parts = group_turns(make_rows(*events), 0)
    assert [(part.number, part.begins, len(part.rows)) for part in parts] == [(1, True, 6), (2, True, 1)]
    totals = add_up([{"seq": seq, "ts": f"2026-11-28T10:00:0{seq}Z", **event} for seq, event in enumerate(events[:6])])
    assert (totals.steps, totals.tokens, totals.cost_usd, totals.seconds) == (1, 12, 0.01, 5.0)
    assert totals.files == {"x.py": (2, 1)}


def test_a_message_during_a_run_begins_no_turn() -> None:
    rows = build_rows([{"seq": 4, "ts": "", **message("more")}], 0, 9, {}, SETTING)
    assert isinstance(rows[0], MessageRow)
    assert group_turns(rows, 3)[0].number == 3
