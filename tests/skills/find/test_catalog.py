"""The catalogue in the system prompt."""

from __future__ import annotations

import re

from bough.skills import SkillMetadata, render_catalog
from bough.skills.find.catalog import estimate_tokens, extract_first_sentence


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


def test_all_descriptions_then_first_sentences_then_as_many_as_fit_with_how_many_more() -> None:
    text = "Does thing one. " + "And more of it. " * 40
    thousand = [SkillMetadata(f"skill-{i:04}", text, f"/s/{i}/SKILL.md") for i in range(1000)]
    full = render_catalog(thousand, budget_tokens=200_000)
    sentences = render_catalog(thousand, budget_tokens=20_000)
    few = render_catalog(thousand, budget_tokens=2_000)
    assert full.complete and full.text.count("And more of it.") == 40_000
    assert sentences.complete and sentences.text.count("Does thing one.") == 1000
    assert 0 < sentences.text.count("And more of it.") < 40_000, "the first in rank keep more of their text"
    assert not few.complete and len(few.shown) == few.text.count("Does thing one.") > 50
    assert f'<more count="{1000 - len(few.shown)}">search_skills finds them by words' in few.text
    for catalog, budget in ((full, 200_000), (sentences, 20_000), (few, 2_000)):
        assert estimate_tokens(catalog.text) <= budget


def test_what_fits_the_request_best_comes_first_and_the_order_stays() -> None:
    many = [SkillMetadata(f"skill-{i:04}", f"Handles matter number {i}.", f"/s/{i}/SKILL.md") for i in range(500)]
    many[499] = SkillMetadata("zebra", "Counts stripes of zebras in photographs.", "/z/SKILL.md")
    plain = render_catalog(many, budget_tokens=1_000)
    ranked = render_catalog(many, budget_tokens=1_000, request="how many stripes do these zebras have?")
    assert "zebra" not in plain.shown and "zebra" in ranked.shown
    assert ranked == render_catalog(many[::-1], budget_tokens=1_000, request="how many stripes do these zebras have?")
    names = re.findall(r'name="([^"]+)"', ranked.text)
    assert names == sorted(names)


def test_schemas_are_in_the_budget_and_a_description_is_cut_at_a_word() -> None:
    some = skills(10, "word " * 400)
    catalog = render_catalog(some, budget_tokens=4_000)
    assert all(len(line) < 1_100 for line in catalog.text.splitlines())
    assert catalog.text.count("word…") == 10
    assert not render_catalog(some, budget_tokens=500, schema_bytes=1_900).complete
    assert extract_first_sentence("Reads v1.2 files. Then more.") == "Reads v1.2 files."
    assert len(extract_first_sentence("x" * 500)) == 160


def test_what_a_model_may_not_load_is_not_shown() -> None:
    hidden = SkillMetadata("hidden", "x", "/h/SKILL.md", invocable=False)
    assert render_catalog([hidden], budget_tokens=100).text == ""
