"""Properties of skills: reading never raises, strict equals the reference, matching equals a naive matcher."""
# ruff: noqa: E501 - a case of a table stays on its line

from __future__ import annotations

import tempfile
import unicodedata
from pathlib import Path

import yaml
from hypothesis import example, given
from hypothesis import strategies as st
from skills_ref import validate

from bough.skills.find.catalog import estimate_tokens, render_catalog
from bough.skills.find.discover import Root, discover
from bough.skills.match.triggers import TriggerIndex
from bough.skills.model import KeywordTrigger, Notes, SkillMetadata
from bough.skills.read.parse import load, read_head, try_read
from bough.skills.read.plain import load_plain

PIECES = [
    "---", "---\n", "\n", "\r\n", "name: ", "description: ", "metadata:\n", "  a: b\n", "x", "a: b", " # c", "'", '"', "\t", "*", "&a ",
    "|", ">-", "- ", "[", "{", "}", "]", "!!x", "\\", "\0", "\ufeff", "é", "技", "...", "?", "%", "@", "`", "triggers: [a]\n",
    "inputs:\n", "globs: '*.py'\n", "yes", "~", "../x", "\x07", "\u2028", "\ud7ff", "<<: ", "null", "true",
]  # fmt: skip

documents = st.one_of(
    st.binary(max_size=400),
    st.lists(st.sampled_from(PIECES), max_size=40).map(lambda parts: "".join(parts).encode("utf-8", "surrogatepass")),
    st.lists(st.sampled_from(PIECES), max_size=30).map(
        lambda parts: ("---\n" + "".join(parts) + "\n---\nbody").encode()
    ),
    st.text(max_size=200).map(lambda text: text.encode("utf-16", "surrogatepass")),
)


@given(documents)
@example(b"---\n" + b"[" * 5000)
@example(b"---\nname: x\ndescription: " + b"{a: " * 3000 + b"\n---\n")
@example(b"\n" * 100_000)
@example(b"---\n" + b"a: &a [x]\n" + b"b: *a\n" * 50 + b"---\n")
def test_reading_any_bytes_gives_a_skill_or_a_diagnostic(data: bytes) -> None:
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "my-skill" / "SKILL.md"
        file.parent.mkdir()
        file.write_bytes(data)
        for mode in ("lenient", "strict"):
            reading = try_read(file, mode)
            if reading.skill is None:
                assert any(each.severity == "error" for each in reading.diagnostics)
            else:
                assert reading.skill.name and reading.skill.description
                assert isinstance(reading.skill.content, str)
        lenient = try_read(file)
        head = read_head(str(file), "my-skill", source="", scope="code")
        assert head is not None
        assert (head.metadata is None) == (lenient.skill is None)
        if head.metadata is not None and lenient.skill is not None:
            assert head.metadata == lenient.skill.summary()
        assert len(discover(Root(Path(folder))).skills) == (lenient.skill is not None)


fields = st.lists(
    st.tuples(
        st.sampled_from(["name", "description", "license", "metadata", "allowed-tools", "compatibility", "other"]),
        st.one_of(st.sampled_from(["my-skill", "My-Skill", "-x", "", "x--y", "'q'", '"q"', "a b", ">\n  x", "\n  a: b"]),
                  st.text(st.characters(codec="utf-8"), max_size=20)),
    ),
    max_size=6,
)  # fmt: skip


@given(fields)
def test_strict_says_what_the_reference_says(entries: list[tuple[str, str]]) -> None:
    text = "---\n" + "".join(f"{key}: {value}\n" for key, value in entries) + "---\nbody\n"
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "my-skill" / "SKILL.md"
        file.parent.mkdir()
        file.write_text(text, encoding="utf-8", newline="")
        try:
            reference = bool(validate(file.parent))
        except Exception:
            reference = True
        assert (try_read(file, "strict").skill is None) == reference


plain_text = st.text(st.sampled_from("abé1 :#-'\"|>.,\\\u0085\t"), max_size=8)
headers = st.lists(
    st.one_of(
        st.tuples(st.sampled_from(["name", "description", "a-b", "c_d"]), st.text(max_size=20)).map(": ".join),
        st.tuples(st.sampled_from(["", "a", "  b", "   c", "  "]), plain_text).map(":".join),
        st.sampled_from(["d: >", "d: |", "d: >-", "d: |-", "m:", "", "# c", "d: > ", "d:"]),
        plain_text.map(lambda text: f"  {text}"),
        plain_text.map(lambda text: f"    {text}"),
    ),
    max_size=8,
)


@given(headers)
@example(['name: "a\u0085b"'])
@example(["d: >", "  a", "  b", "e: f"])
@example(["d: |", "  a ", "  b:", ""])
@example(["d: >", "  a", "", "  b"])
@example(["d: >", "   a", "  b"])
def test_the_fast_path_says_what_yaml_says(lines: list[str]) -> None:
    header = "".join(f"{line}\n" for line in lines)
    plain = load_plain(header)
    if plain is not None:
        assert plain == (yaml.load(header, Loader=yaml.BaseLoader) or {})


@given(st.text(st.sampled_from("ab:# \n\t'\"-|>*&[]{}\\"), max_size=80))
def test_what_yaml_accepts_is_read_as_yaml_has_it(header: str) -> None:
    try:
        data = yaml.load(header, Loader=yaml.BaseLoader)
    except yaml.YAMLError:
        data = None
    if isinstance(data, dict) and all(isinstance(key, str) for key in data) and "&" not in header:
        assert load(header, Notes()) == data


def naive(text: str, keyword: str) -> bool:
    """Whether a keyword is in a text as a whole word: the definition, without any index."""
    haystack = unicodedata.normalize("NFC", text).casefold()
    needle = unicodedata.normalize("NFC", keyword.strip()).casefold()
    for start in range(len(haystack)):
        if needle and haystack.startswith(needle, start):
            before, after = haystack[start - 1 : start] if start else "", haystack[start + len(needle) :][:1]
            if not joined(before, needle[0]) and not joined(needle[-1], after):
                return True
    return False


def joined(left: str, right: str) -> bool:
    return all(char and is_word(char) and not is_unspaced(char) for char in (left, right))


def is_word(char: str) -> bool:
    return char.isalnum() or char == "_" or unicodedata.category(char).startswith("M")


def is_unspaced(char: str) -> bool:
    names = ("CJK", "HIRAGANA", "KATAKANA", "HANGUL SYLLABLE", "THAI", "LAO")
    return unicodedata.name(char, "").startswith(names) and unicodedata.category(char)[0] in "LMN"


LETTERS = "abAB ß ẞ sS İiıI éE\u0301 ſ ﬁ Σσς 技能 ก 한 _-/.+#0 9\n\u0301 \u200d ǅ ΰ"
texts = st.text(st.sampled_from(sorted(set(LETTERS))), max_size=30)


@given(texts, st.lists(texts, max_size=8, unique=True))
@example("STRASSE und straße", ["Straße", "und"])
@example("github git_hub (git)", ["git"])
@example("ΰ", ["\u03b0", "\u03c5\u0308\u0301"])
@example("数据库优化", ["数据库"])
def test_matching_equals_the_naive_matcher(text: str, keywords: list[str]) -> None:
    usable = [word for word in keywords if word.strip() and not word.strip().startswith("re:")]
    skills = [
        SkillMetadata(f"skill-{i}", "x", "/s/SKILL.md", trigger=KeywordTrigger((word,)))
        for i, word in enumerate(usable)
    ]
    index = TriggerIndex(skills)

    found = {match.skill for match in index.match(text) if match.kind == "keyword"}

    assert found == {skill.name for skill, word in zip(skills, usable, strict=True) if naive(text, word)}
    active = set(list(found)[:1])
    assert {match.skill for match in index.match(text, active)} == found - active
    for match in index.match(text):
        assert match.keyword in unicodedata.normalize("NFC", text)


names = st.text(st.characters(codec="utf-8"), min_size=1, max_size=30)


@given(
    st.lists(st.tuples(names, st.text(max_size=200)), max_size=20, unique_by=lambda skill: skill[0]),
    st.integers(0, 400),
)
def test_a_catalogue_keeps_its_budget_and_is_one_element(skills: list[tuple[str, str]], budget: int) -> None:
    from xml.etree import ElementTree

    shown = [SkillMetadata(name, description, "/s/SKILL.md") for name, description in skills]
    catalog = render_catalog(shown, budget_tokens=budget)
    assert render_catalog(shown[::-1], budget_tokens=budget).complete == catalog.complete
    assert bool(catalog.text) <= bool(skills)
    if catalog.text:
        assert estimate_tokens(catalog.text) <= budget or catalog.text.count("<skill ") == 0
        root = ElementTree.fromstring(catalog.text)
        assert len(root) == len(skills) or not catalog.complete
        if catalog.complete:
            shown.sort(key=lambda skill: skill.name)
            assert [each.text or "" for each in root] == [" ".join(legal(s.description).split()) for s in shown]


def legal(text: str) -> str:
    """A text as XML can hold it."""
    return "".join("\ufffd" if (unicodedata.category(char) in ("Cc", "Cs") and char not in "\t\n\r") or char in "\ufffe\uffff"
                   else char for char in text)  # fmt: skip
