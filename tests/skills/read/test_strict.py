"""Strict reading says what the specification's reference validator says; every case names its rule.

The reference itself (`skills-ref`) judges each case too, so that neither this table nor the code can drift.
"""
# ruff: noqa: E501 - a case of a table stays on its line

from __future__ import annotations

from pathlib import Path

import pytest
from skills_ref import validate

from bough.skills import SkillRefused, read_skill
from bough.skills.read.parse import try_read

GOOD = "name: my-skill\ndescription: Does a thing. Use it when a thing is to be done.\n"


def doc(header: str, body: str = "Do it.\n") -> str:
    return f"---\n{header}---\n{body}"


def named(name: str) -> str:
    return doc(f"name: {name}\ndescription: Does a thing.\n")


def described(description: str) -> str:
    return doc(f"name: my-skill\ndescription: {description}\n")


CASES: list[tuple[str, str, str | bytes, str, set[str]]] = [
    # (rule, case, file, folder, codes of the faults)
    ("required fields only", "minimal", doc(GOOD), "my-skill", set()),
    ("all fields", "complete", doc(GOOD + "license: MIT\ncompatibility: git\nmetadata:\n  a: b\nallowed-tools: Read\n"),
     "my-skill", set()),
    ("body is free", "no body", doc(GOOD, ""), "my-skill", set()),
    ("body is free", "dashes in the body", doc(GOOD, "a\n---\nb\n---\n"), "my-skill", set()),
    ("body is free", "long body", doc(GOOD, "x " * 50_000), "my-skill", set()),
    ("line ends", "CRLF", doc(GOOD).replace("\n", "\r\n"), "my-skill", set()),
    # the name's length
    ("name 1-64 characters", "one letter", named("a"), "a", set()),
    ("name 1-64 characters", "64", named("a" * 64), "a" * 64, set()),
    ("name 1-64 characters", "65", named("a" * 65), "a" * 65, {"name-length"}),
    ("name 1-64 characters", "empty", named(""), "my-skill", {"name-empty"}),
    ("name 1-64 characters", "blank in quotes", named("'   '"), "my-skill", {"name-empty"}),
    ("name 1-64 characters", "empty quotes", named('""'), "my-skill", {"name-empty"}),
    ("name 1-64 characters", "64 after NFKC", named("ﬁ" * 32), "fi" * 32, set()),
    ("name 1-64 characters", "66 after NFKC", named("ﬁ" * 33), "fi" * 33, {"name-length"}),
    # the name's characters
    ("name lower case", "digits and hyphens", named("a1-b2-3"), "a1-b2-3", set()),
    ("name lower case", "digits only", named("123"), "123", set()),
    ("name lower case", "capital", named("My-skill"), "My-skill", {"name-case"}),
    ("name lower case", "capitals", named("PDF"), "PDF", {"name-case"}),
    ("name lower case", "umlaut capital", named("Ärger"), "Ärger", {"name-case"}),
    ("name letters of any script", "umlaut", named("ärger"), "ärger", set()),
    ("name letters of any script", "han", named("技能"), "技能", set()),
    ("name letters of any script", "cyrillic", named("навык-1"), "навык-1", set()),
    ("name letters of any script", "full width is folded", named("ａｂｃ"), "abc", set()),
    ("name letters of any script", "full width folder", named("abc"), "ａｂｃ", set()),
    ("name letters of any script", "combining mark composes", named("e\u0301tude"), "\u00e9tude", set()),
    ("name letters of any script", "combining mark alone", named("x\u0301y"), "x\u0301y", {"name-characters"}),
    ("name letters, digits, hyphens", "underscore", named("my_skill"), "my_skill", {"name-characters"}),
    ("name letters, digits, hyphens", "blank", named("my skill"), "my skill", {"name-characters"}),
    ("name letters, digits, hyphens", "dot", named("my.skill"), "my.skill", {"name-characters"}),
    ("name letters, digits, hyphens", "slash", named("a/b"), "my-skill", {"name-characters", "name-folder"}),
    ("name letters, digits, hyphens", "climbs out", named("../x"), "x", {"name-characters", "name-folder"}),
    ("name letters, digits, hyphens", "XML", named("<b>"), "my-skill", {"name-characters", "name-folder"}),
    ("name letters, digits, hyphens", "emoji", named("go-🚀"), "go-🚀", {"name-characters"}),
    ("name letters, digits, hyphens", "colon", named("'a:b'"), "my-skill", {"name-characters", "name-folder"}),
    ("name letters, digits, hyphens", "newline", named('"a\\nb"'), "my-skill", {"name-characters", "name-folder"}),
    ("name letters, digits, hyphens", "en dash", named("a–b"), "a–b", {"name-characters"}),
    ("name letters, digits, hyphens", "plus", named("c++"), "c++", {"name-characters"}),
    ("name is trimmed", "blanks around", named("'  my-skill  '"), "my-skill", set()),
    # the name's hyphens
    ("name hyphens at the ends", "leading", named("-pdf"), "-pdf", {"name-hyphen-end"}),
    ("name hyphens at the ends", "trailing", named("pdf-"), "pdf-", {"name-hyphen-end"}),
    ("name hyphens at the ends", "only", named("'-'"), "-", {"name-hyphen-end"}),
    ("name hyphens in a row", "two", named("a--b"), "a--b", {"name-hyphen-double"}),
    ("name hyphens in a row", "three", named("a---b"), "a", {"description-missing"}),
    ("name hyphens in a row", "at both ends", named("'--'"), "--", {"name-hyphen-end", "name-hyphen-double"}),
    # the name and the folder
    ("name equals the folder", "other", named("other"), "my-skill", {"name-folder"}),
    ("name equals the folder", "case differs", named("pdf"), "PDF", {"name-folder"}),
    ("name equals the folder", "underscore for hyphen", named("my-skill"), "my_skill", {"name-folder"}),
    ("name equals the folder", "prefix", named("my-skill"), "my-skill-2", {"name-folder"}),
    ("name is required", "missing", doc("description: Does a thing.\n"), "my-skill", {"name-missing"}),
    ("name is text", "list", doc("name:\n  - a\ndescription: x\n"), "my-skill", {"name-empty"}),
    ("name is text", "mapping", doc("name:\n  a: b\ndescription: x\n"), "my-skill", {"name-empty"}),
    ("name is text", "boolean word", named("yes"), "yes", set()),
    ("name is text", "number", named("2024"), "2024", set()),
    ("name is text", "null word", named("null"), "null", set()),
    # the description
    ("description 1-1024 characters", "one", described("x"), "my-skill", set()),
    ("description 1-1024 characters", "1024", described("x" * 1024), "my-skill", set()),
    ("description 1-1024 characters", "1025", described("x" * 1025), "my-skill", {"description-length"}),
    ("description 1-1024 characters", "1024 wide ones", described("技" * 1024), "my-skill", set()),
    ("description 1-1024 characters", "empty", described(""), "my-skill", {"description-empty"}),
    ("description 1-1024 characters", "blank", described("'  '"), "my-skill", {"description-empty"}),
    ("description 1-1024 characters", "blanks count", described("'" + "x" * 1000 + " " * 25 + "'"), "my-skill",
     {"description-length"}),
    ("description is required", "missing", doc("name: my-skill\n"), "my-skill", {"description-missing"}),
    ("description is text", "list", doc("name: my-skill\ndescription:\n  - a\n"), "my-skill", {"description-empty"}),
    ("description is text", "number", described("42"), "my-skill", set()),
    ("description is text", "folded", doc("name: my-skill\ndescription: >\n  a\n  b\n"), "my-skill", set()),
    ("description is text", "literal", doc("name: my-skill\ndescription: |\n  a\n\n  b\n"), "my-skill", set()),
    ("description is text", "in quotes with a colon", described('"a: b # c"'), "my-skill", set()),
    # compatibility
    ("compatibility up to 500", "500", doc(GOOD + f"compatibility: {'x' * 500}\n"), "my-skill", set()),
    ("compatibility up to 500", "501", doc(GOOD + f"compatibility: {'x' * 501}\n"), "my-skill",
     {"compatibility-length"}),
    ("compatibility is text", "list", doc(GOOD + "compatibility:\n  - a\n"), "my-skill", {"compatibility-not-text"}),
    ("compatibility is text", "mapping", doc(GOOD + "compatibility:\n  a: b\n"), "my-skill", {"compatibility-not-text"}),
    # the other fields
    ("known fields only", "one unknown", doc(GOOD + "version: 1\n"), "my-skill", {"field-unknown"}),
    ("known fields only", "two unknown", doc(GOOD + "version: 1\nauthor: me\n"), "my-skill", {"field-unknown"}),
    ("known fields only", "capital", doc(GOOD + "License: MIT\n"), "my-skill", {"field-unknown"}),
    ("known fields only", "underscore", doc(GOOD + "allowed_tools: Read\n"), "my-skill", {"field-unknown"}),
    ("known fields only", "a trigger", doc(GOOD + "triggers:\n  - a\n"), "my-skill", {"field-unknown"}),
    ("metadata is a mapping", "text to text", doc(GOOD + 'metadata:\n  version: "1.0"\n  n: 1\n'), "my-skill", set()),
    ("allowed-tools", "a text", doc(GOOD + "allowed-tools: Bash(git:*) Read\n"), "my-skill", set()),
    ("allowed-tools", "a list", doc(GOOD + "allowed-tools:\n  - Bash(git:*)\n  - Read\n"), "my-skill", set()),
    # the frontmatter
    ("frontmatter is required", "none", "# My skill\n\nDoes it.\n", "my-skill", {"frontmatter-missing"}),
    ("frontmatter is required", "empty file", "", "my-skill", {"frontmatter-missing"}),
    ("frontmatter comes first", "blank line before", "\n" + doc(GOOD), "my-skill", {"frontmatter-missing"}),
    ("frontmatter comes first", "blank before", " " + doc(GOOD), "my-skill", {"frontmatter-missing"}),
    ("frontmatter comes first", "byte order mark", b"\xef\xbb\xbf" + doc(GOOD).encode(), "my-skill", {"frontmatter-missing"}),
    ("frontmatter comes first", "heading before", "# x\n" + doc(GOOD), "my-skill", {"frontmatter-missing"}),
    ("frontmatter is closed", "no second fence", "---\n" + GOOD, "my-skill", {"frontmatter-unclosed"}),
    ("frontmatter is closed", "dots", "---\n" + GOOD + "...\nbody\n", "my-skill", {"frontmatter-unclosed"}),
    ("frontmatter is closed", "on one line", "--- name: my-skill ---\n", "my-skill", {"description-missing"}),
    ("frontmatter is a mapping", "list", doc("- name\n- description\n"), "my-skill", {"frontmatter-not-mapping"}),
    ("frontmatter is a mapping", "text", doc("just text\n"), "my-skill", {"frontmatter-not-mapping"}),
    ("frontmatter is a mapping", "empty", doc(""), "my-skill", {"frontmatter-not-mapping"}),
    ("frontmatter is a mapping", "comment only", doc("# nothing\n"), "my-skill", {"frontmatter-not-mapping"}),
    # the YAML of the specification
    ("YAML: no colon in a plain value", "colon", described("a: b"), "my-skill", {"yaml-invalid"}),
    ("YAML: no flow mapping", "braces", doc(GOOD + "metadata: {a: b}\n"), "my-skill", {"yaml-invalid"}),
    ("YAML: no flow list", "brackets", doc(GOOD + "allowed-tools: [Read, Write]\n"), "my-skill", {"yaml-invalid"}),
    ("YAML: no repeated key", "name twice", doc("name: a\n" + GOOD), "my-skill", {"yaml-invalid"}),
    ("YAML: no anchor", "anchor", doc("name: &a my-skill\ndescription: x\n"), "my-skill", {"yaml-invalid"}),
    ("YAML: no alias", "alias", described("*x"), "my-skill", {"yaml-invalid"}),
    ("YAML: no tag", "tag", doc("name: !!str my-skill\ndescription: x\n"), "my-skill", {"yaml-invalid"}),
    ("YAML: no tab", "indented by a tab", doc(GOOD + "metadata:\n\ta: b\n"), "my-skill", {"yaml-invalid"}),
    ("YAML: quotes closed", "open quote", described('"a'), "my-skill", {"yaml-invalid"}),
    ("YAML: escapes", "unknown escape", described('"a \\d b"'), "my-skill", {"yaml-invalid"}),
    ("YAML: special first character", "at sign", described("@me"), "my-skill", {"yaml-invalid"}),
    ("YAML: special first character", "backtick", described("`x`"), "my-skill", {"yaml-invalid"}),
    ("YAML: special first character", "percent", described("%x"), "my-skill", {"yaml-invalid"}),
    ("YAML: indentation", "uneven", doc(GOOD + "metadata:\n   a: b\n  c: d\n"), "my-skill", {"yaml-invalid"}),
    ("YAML: comment", "after a value", doc("name: my-skill # mine\ndescription: x\n"), "my-skill", set()),
    ("YAML: no control characters", "bell", described("a\x07b"), "my-skill", {"yaml-invalid"}),
    # several faults at once
    ("every fault at once", "name", named("-My--Skill_"), "x",
     {"name-case", "name-hyphen-end", "name-hyphen-double", "name-characters", "name-folder"}),
    ("every fault at once", "all fields", doc(f"name: {'A' * 70}\ndescription: {'x' * 1025}\nfoo: 1\ncompatibility: {'y' * 501}\n"),
     "my-skill", {"field-unknown", "name-length", "name-case", "name-folder", "description-length", "compatibility-length"}),
    ("every fault at once", "both missing", doc("license: MIT\n"), "my-skill", {"name-missing", "description-missing"}),
]  # fmt: skip

AFTER_A_YAML_FAULT: list[tuple[str, str, set[str]]] = [
    ("the name too", doc("name: Bad_Name\ndescription: a: b\n"), {"yaml-invalid", "name-case", "name-characters", "name-folder"}),
    ("unknown fields too", doc(GOOD + "version: a: b\n"), {"yaml-invalid", "field-unknown"}),
    ("a missing description too", doc("name: my-skill\nlicense: a: b\n"), {"yaml-invalid", "description-missing"}),
    ("the fields behind a mark too", "\ufeff" + doc("name: X\n"), {"frontmatter-missing", "name-case", "name-folder",
                                                                    "description-missing"}),
    ("the fields of an open frontmatter too", "---\nname: X\n", {"frontmatter-unclosed", "name-case", "name-folder",
                                                                 "description-missing"}),
]  # fmt: skip


def write(root: Path, folder: str, text: str | bytes) -> Path:
    file = root / folder / "SKILL.md"
    file.parent.mkdir()
    file.write_bytes(text if isinstance(text, bytes) else text.encode())
    return file


def reference_faults(folder: Path) -> list[str]:
    """What the reference validator says; where it breaks on a file, that is its fault."""
    try:
        return validate(folder)
    except Exception as error:
        return [repr(error)]


def codes(file: Path) -> set[str]:
    return {each.code for each in try_read(file, "strict").diagnostics if each.severity == "error"}


def test_the_table_has_its_size() -> None:
    assert len(CASES) >= 80
    assert len({(rule, case) for rule, case, *_ in CASES}) == len(CASES)


@pytest.mark.parametrize(("rule", "case", "text", "folder", "expected"), CASES, ids=[f"{c[0]}: {c[1]}" for c in CASES])
def test_strict_says_what_the_reference_says(
    tmp_path: Path, rule: str, case: str, text: str | bytes, folder: str, expected: set[str]
) -> None:
    file = write(tmp_path, folder, text)

    found = codes(file)

    assert expected <= found, f"{rule}: {case}"
    assert bool(found) == bool(reference_faults(file.parent)), f"{rule}: {case}"
    if not any(code.startswith(("yaml", "frontmatter")) for code in expected):
        assert found == expected
        assert len(found) == len(reference_faults(file.parent))


@pytest.mark.parametrize(("case", "text", "expected"), AFTER_A_YAML_FAULT, ids=[c[0] for c in AFTER_A_YAML_FAULT])
def test_faults_behind_a_broken_frontmatter_are_named_too(
    tmp_path: Path, case: str, text: str, expected: set[str]
) -> None:
    assert codes(write(tmp_path, "my-skill", text)) == expected


def test_what_is_not_utf_8_is_a_fault_and_the_rest_is_still_read(tmp_path: Path) -> None:
    file = write(tmp_path, "my-skill", "---\nname: My-Skill\ndescription: caf\xe9\n---\n".encode("latin-1"))
    assert codes(file) == {"encoding", "name-case", "name-folder"}


def test_the_specification_file_may_be_in_small_letters(tmp_path: Path) -> None:
    folder = tmp_path / "my-skill"
    folder.mkdir()
    (folder / "skill.md").write_text(doc(GOOD))
    assert read_skill(folder, "strict").name == "my-skill"
    assert reference_faults(folder) == []


def test_a_folder_without_the_file_is_a_fault(tmp_path: Path) -> None:
    assert codes(tmp_path) == {"unreadable"}
    assert reference_faults(tmp_path)


def test_a_refusal_carries_every_fault_with_its_fix(tmp_path: Path) -> None:
    file = write(tmp_path, "x", named("-Bad_"))
    with pytest.raises(SkillRefused) as caught:
        read_skill(file, "strict")
    faults = [each for each in caught.value.diagnostics if each.severity == "error"]
    assert len(faults) == 4 and all(each.fix and each.path == str(file) for each in faults)


def test_dashes_inside_a_value_end_it_for_the_reference_and_that_is_said(tmp_path: Path) -> None:
    file = write(tmp_path, "my-skill", "---\nname: my-skill\ndescription: one --- two\n---\nbody\n")
    reading = try_read(file, "strict")
    assert reading.skill is not None and reading.skill.description == "one --- two"
    assert "fence-in-value" in {each.code for each in reading.diagnostics}
    assert reference_faults(file.parent) == []
