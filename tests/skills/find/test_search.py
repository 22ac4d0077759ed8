"""Finding skills by words, also by words that their authors did not use."""

from __future__ import annotations

from bough.skills import SkillMetadata
from bough.skills.find.search import SkillSearch

LIBRARY = {
    "compress-photos": "Compress photos. Use when the user wants to shrink pictures.",
    "compress-logs": "Compress logs. Use when the user wants to shrink traces.",
    "compress-receipts": "Compress receipts. Use when the user wants to pack them.",
    "shrink-tables": "Shrink tables. Use when the user wants to compress rows.",
    "merge-bills": "Merge bills. Use when the user wants to join receipts.",
    "sort-bills": "Sort bills. Use when the user wants to order receipts.",
    "translate-bills": "Translate bills. Use when the user wants to read receipts in another language.",
}


def search_of(skills: dict[str, str], *, fillers: int = 40) -> SkillSearch:
    """A search over some skills among others that have nothing to do with them."""
    more = {f"filler-{i}": f"Handles matter{i}. Use when the user wants to settle affair{i}." for i in range(fillers)}
    return SkillSearch([SkillMetadata(name, text, f"/s/{name}/SKILL.md") for name, text in {**skills, **more}.items()])


def names(search: SkillSearch, query: str, limit: int = 5) -> list[str]:
    return [skill.name for skill in search.search(query, limit)]


def test_a_skill_is_found_by_words_that_other_skills_list_beside_its_own() -> None:
    found = names(search_of(LIBRARY), "please shrink my bills")
    assert "compress-receipts" in found, "neither word is in it"
    assert set(found) <= set(LIBRARY)


def test_every_second_result_matches_as_asked() -> None:
    search = search_of(LIBRARY)
    assert names(search, "please shrink my bills", 1)[0] in ("shrink-tables", "merge-bills", "sort-bills")
    asked = {"shrink-tables", "compress-photos", "compress-logs", "merge-bills", "sort-bills", "translate-bills"}
    for limit in range(1, 7):
        found = names(search, "please shrink my bills", limit)
        assert len(found) == limit and len(asked.intersection(found)) >= (limit + 1) // 2


def test_a_word_that_most_skills_have_is_related_to_none() -> None:
    search = search_of(LIBRARY)
    assert names(search, "settle affair7") == ["filler-7", *names(search, "settle affair7")[1:]]
    assert not set(names(search, "tables", 9)) - {"shrink-tables"}


def test_an_unknown_word_finds_nothing() -> None:
    assert names(search_of(LIBRARY), "zebra") == []
    assert names(search_of({}, fillers=0), "shrink bills") == []


def test_the_number_of_statements_does_not_grow_with_the_number_of_skills() -> None:
    def count(fillers: int) -> int:
        search = search_of(LIBRARY, fillers=fillers)
        statements: list[str] = []
        search._connection.set_trace_callback(statements.append)  # pyright: ignore[reportPrivateUsage]
        names(search, "please shrink my bills")
        return len([each for each in statements if not each.startswith("--")])

    assert count(40) == count(2_000)
