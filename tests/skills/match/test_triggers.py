"""Which skills a message activates, and with what inputs."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from bough.skills import InputMetadata, KeywordTrigger, Skill, SkillMetadata, TaskTrigger, TriggerIndex


def knowledge(name: str, *keywords: str) -> SkillMetadata:
    return SkillMetadata(name, "x", f"/s/{name}.md", trigger=KeywordTrigger(keywords))


def task(name: str, *triggers: str, inputs: tuple[InputMetadata, ...] = ()) -> SkillMetadata:
    return SkillMetadata(name, "x", f"/s/{name}.md", trigger=TaskTrigger(triggers), inputs=inputs)


@pytest.mark.parametrize(
    ("keyword", "message", "matched"),
    [
        ("git", "use git now", "git"),
        ("git", "GIT!", "GIT"),
        ("git", "(git)", "git"),
        ("git", "git-flow", "git"),
        ("git", "github", None),
        ("git", "git_hub", None),
        ("git", "legit", None),
        ("git", "git2", None),
        ("Straße", "In der STRASSE", "STRASSE"),
        ("STRASSE", "die straße dort", "straße"),
        ("ÉTUDE", "une e\u0301tude", "\u00e9tude"),
        ("machine learning", "Machine Learning!", "Machine Learning"),
        ("machine learning", "a  machine\n   learning  model", "machine\n   learning"),
        ("machine \t learning", "machine\u00a0learning", "machine\u00a0learning"),
        ("große straße", "die  GROSSE\r\nSTRASSE hier", "GROSSE\r\nSTRASSE"),
        ("machine learning", "machinelearning", None),
        ("machine learning", "a machine, learning", None),
        ("c++", "in C++ please", "C++"),
        ("c++", "abc++", None),
        (".net", "asp.net", ".net"),
        ("数据库", "请优化数据库查询", "数据库"),
        ("도커", "도커를 써", "도커"),
        ("naïve", "naïvete", None),
        ("e", "e\u0301", None),
        ("k8s", "deploy to k8s.", "k8s"),
        ("/fix", "please /fix it", "/fix"),
        ("", "anything", None),
        ("  ", "any  thing", None),
        ("re:fix(es|ed)?", "It FIXES that", "FIXES"),
        ("re:\\bissue #\\d+", "see Issue #42", "Issue #42"),
        ("re:(?=x)", "x", None),
        ("re:(", "(", None),
    ],
)
def test_a_keyword_matches_whole_words_of_any_case(keyword: str, message: str, matched: str | None) -> None:
    found = TriggerIndex([knowledge("k", keyword)]).match(message)
    assert [match.keyword for match in found] == ([] if matched is None else [matched])


def test_expressions_that_re2_refuses_are_diagnosed_and_harm_no_other() -> None:
    index = TriggerIndex([knowledge("bad", "re:(?=x)", "re:("), knowledge("good", "re:x+")])
    assert [match.skill for match in index.match("xx")] == ["good"]
    assert [each.code for each in index.diagnostics] == ["trigger-bad-regex"] * 2


def test_an_expression_made_to_be_slow_is_not() -> None:
    index = TriggerIndex([knowledge("slow", "re:(a+)+$")])
    assert index.match("a" * 50_000 + "b") == []


def test_each_skill_comes_once_in_order_of_its_place_and_active_ones_are_left_out() -> None:
    index = TriggerIndex([knowledge("b", "two", "one"), knowledge("a", "three"), knowledge("c", "one")])
    message = "three two one two"
    assert [(match.skill, match.keyword) for match in index.match(message)] == [
        ("a", "three"),
        ("b", "two"),
        ("c", "one"),
    ]
    assert [match.skill for match in index.match(message, {"b", "c"})] == ["a"]
    assert index.match(message, {"a", "b", "c"}) == []


def test_the_work_does_not_grow_with_the_number_of_skills() -> None:
    def calls(count: int) -> int:
        index = TriggerIndex([knowledge(f"k{i}", f"word{i}", f"re:expression{i}") for i in range(count)])
        made = 0

        def count_call(frame: object, event: str, arg: object) -> None:
            nonlocal made
            made += event in ("call", "c_call")

        sys.setprofile(count_call)
        try:
            assert [match.skill for match in index.match("only word7 here")] == ["k7"]
        finally:
            sys.setprofile(None)
        return made

    assert calls(10) == calls(2_000)


INPUTS = (InputMetadata("issue", "Number"), InputMetadata("path", default="."), InputMetadata("note", required=False))


@pytest.mark.parametrize(
    ("message", "inputs", "missing"),
    [
        ("/fix-bug issue=42", {"issue": "42"}, ()),
        ('/fix-bug issue=42 path="a b"', {"issue": "42", "path": "a b"}, ()),
        ("/fix-bug issue='a b' note=x", {"issue": "a b", "note": "x"}, ()),
        ("/fix-bug 42", {"issue": "42"}, ()),
        ("/fix-bug the whole rest is it", {"issue": "the whole rest is it"}, ()),
        ("/fix-bug path=src 42", {"path": "src", "issue": "42"}, ()),
        ("/fix-bug", {}, ("issue",)),
        ("/fix-bug issue=", {"issue": ""}, ("issue",)),
        ('/fix-bug issue=""', {"issue": ""}, ("issue",)),
        ("/fix-bug unknown=1 7", {"issue": "unknown=1", "path": "7"}, ()),
        ("/fix-bug 42 dev", {"issue": "42", "path": "dev"}, ()),
        ('/fix-bug 42 "my src" later', {"issue": "42", "path": "my src", "note": "later"}, ()),
        ("/fix-bug 42 issue=7 dev", {"issue": "7", "path": "42", "note": "dev"}, ()),
        ("please run /fix-bug 42\nand then rest", {"issue": "42"}, ()),
        ("  /Fix-Bug 42", {"issue": "42"}, ()),
        ("fix the bug issue=9 now", {"issue": "9"}, ()),
        ("fix the bug", {}, ("issue",)),
        ('fix the bug issue="a \\"q\\" b"', {"issue": 'a "q" b'}, ()),
    ],
)
def test_inputs_are_parsed_from_the_message(message: str, inputs: dict[str, str], missing: tuple[str, ...]) -> None:
    [match] = TriggerIndex([task("fix-bug", "fix the bug", inputs=INPUTS)]).match(message)
    assert {name: value for name, value in match.inputs.items() if name != "ARGUMENTS"} == inputs
    assert match.missing == missing
    assert match.kind == ("slash" if "/" in message else "task")


def test_a_name_calls_its_skill_at_a_word_s_start_only() -> None:
    index = TriggerIndex([SkillMetadata("pdf", "x", Path("/s/pdf/SKILL.md")), Skill(name="acme/pdf", content="x")])
    [match] = index.match("/pdf fill the form")
    assert (match.skill, match.kind, match.keyword, match.inputs) == (
        "pdf",
        "slash",
        "/pdf",
        {"ARGUMENTS": "fill the form"},
    )
    for text, called in {
        "see /pdf": ["pdf"],
        "read it with @pdf, please": ["pdf"],
        "(/pdf)": [],
        "first /PDF; then more": ["pdf"],
        "/acme/pdf now": ["acme/pdf"],
        "line\n/pdf two": ["pdf"],
        "/pdfs": [],
        "me@pdf.org": [],
        "a/pdf": [],
        "/usr/bin": [],
        "/": [],
        "@": [],
        "": [],
        "the command `/pdf x` and\n```\n/pdf\n```\n": [],
    }.items():
        assert [match.skill for match in index.match(text)] == called, text
    assert index.match("use @pdf on this")[0].inputs == {}
    assert index.match("a\n/pdf two words\nrest")[0].inputs == {"ARGUMENTS": "two words"}
    assert index.match("/pdf x", active={"pdf"}) == []


@pytest.mark.parametrize("source", ["re:", "re:  ", "re:(", "re:(?=x)", "re:a*", "re:" + "x" * 1001])
def test_an_expression_that_cannot_be_used_is_told_and_triggers_nothing(source: str) -> None:
    index = TriggerIndex([knowledge("odd", source), knowledge("good", "re:go+d")])
    assert [match.skill for match in index.match("good and x")] == ["good"]
    assert [note.code for note in index.diagnostics] == ["trigger-bad-regex"]


def test_an_index_without_skills_matches_nothing() -> None:
    assert TriggerIndex([]).match("anything") == []


def test_several_skills_of_one_phrase_all_have_its_place() -> None:
    index = TriggerIndex([knowledge("one", "deep  water"), knowledge("two", "deep water")])
    found = index.match("first   some, then deep\n\nwater")
    assert [(match.skill, match.keyword) for match in found] == [("one", "deep\n\nwater"), ("two", "deep\n\nwater")]
