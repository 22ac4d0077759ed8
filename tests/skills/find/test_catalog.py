"""The catalogue in the system prompt."""

from __future__ import annotations

from bough.skills import SkillMetadata, render_catalog
from bough.skills.find.catalog import tokens_of


def skills(count: int, description: str = "Does a thing.") -> list[SkillMetadata]:
    return [SkillMetadata(f"skill-{i:04}", description, f"/s/{i}/SKILL.md") for i in range(count)]


def test_no_skills_no_catalogue() -> None:
    catalog = render_catalog([], budget_tokens=100)
    assert (catalog.text, catalog.complete) == ("", True)


def test_sorted_escaped_and_the_same_bytes_for_the_same_skills() -> None:
    some = [
        SkillMetadata("b", 'A <b> & "c"\nover\tlines\x00\x1b.', "/b/SKILL.md"),
        SkillMetadata('a"<', "x", "/a/SKILL.md"),
    ]
    catalog = render_catalog(some, budget_tokens=1000)
    assert catalog.text == (
        '<available_skills>\n<skill name="a&quot;&lt;">x</skill>\n'
        '<skill name="b">A &lt;b&gt; &amp; "c" over lines\ufffd\ufffd.</skill>\n</available_skills>'
    )
    assert render_catalog(some[::-1], budget_tokens=1000) == catalog


def test_too_long_gives_names_only_then_as_many_as_fit() -> None:
    thousand = skills(1000, "Does a thing " * 20)
    full = render_catalog(thousand, budget_tokens=200_000)
    names = render_catalog(thousand, budget_tokens=10_000)
    few = render_catalog(thousand, budget_tokens=500)
    assert full.complete and "Does a thing" in full.text
    assert not names.complete and names.text.count("<skill ") == 1000 and "Does" not in names.text
    assert not few.complete and 0 < few.text.count("<skill ") < 1000
    assert tokens_of(few.text) <= 500 and tokens_of(names.text) <= 10_000


def test_what_a_model_may_not_load_is_not_shown() -> None:
    hidden = SkillMetadata("hidden", "x", "/h/SKILL.md", invocable=False)
    assert render_catalog([hidden], budget_tokens=100).text == ""
