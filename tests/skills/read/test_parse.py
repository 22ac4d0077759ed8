"""Lenient reading: every kind of malformed file, the skill it gives and the diagnostic that says what to fix."""
# ruff: noqa: E501 - a case of a table stays on its line

from __future__ import annotations

import os
from pathlib import Path

import pytest

from bough.skills import (
    InputMetadata,
    KeywordTrigger,
    PathTrigger,
    Skill,
    SkillRefused,
    SkillRegistry,
    TaskTrigger,
    read_skill,
)
from bough.skills.read.parse import MAX_DIAGNOSTICS, MAX_FILE_BYTES, extract_first_paragraph, try_read

D = "Does a thing."


def doc(header: str, body: str = "Do it.\n") -> str:
    return f"---\n{header}---\n{body}"


def good(extra: str = "") -> str:
    return doc(f"name: my-skill\ndescription: {D}\n{extra}")


MENDED: list[tuple[str, str | bytes, str, str, str]] = [
    # (case, file, the name, the description, code of a diagnostic)
    # the frontmatter's place and fences
    ("byte order mark", b"\xef\xbb\xbf" + good().encode(), "my-skill", D, "bom"),
    ("UTF-16 LE with mark", b"\xff\xfe" + good().encode("utf-16-le"), "my-skill", D, "utf-16"),
    ("UTF-16 BE with mark", b"\xfe\xff" + good().encode("utf-16-be"), "my-skill", D, "utf-16"),
    ("UTF-16 LE without mark", good().encode("utf-16-le"), "my-skill", D, "utf-16"),
    ("UTF-16 BE without mark", good().encode("utf-16-be"), "my-skill", D, "utf-16"),
    ("UTF-32", good().encode("utf-32"), "my-skill", D, "utf-32"),
    ("latin-1", doc("name: my-skill\ndescription: Café.\n").encode("latin-1"), "my-skill", "Café.", "not-utf-8"),
    ("Windows quotes", doc("name: my-skill\ndescription: It\x92s.\n").encode("latin-1"), "my-skill", "It’s.", "not-utf-8"),
    ("NUL bytes", good().replace("thing", "th\0ing").encode(), "my-skill", D, "nul-bytes"),
    ("NUL bytes in the name", good().replace("my-", "m\0y-").encode(), "my-skill", D, "nul-bytes"),
    ("CRLF", good().replace("\n", "\r\n"), "my-skill", D, "crlf"),
    ("CR only", good().replace("\n", "\r"), "my-skill", D, "crlf"),
    ("mixed line ends", good().replace("\n", "\r\n", 2), "my-skill", D, "crlf"),
    ("a blank line first", "\n" + good(), "my-skill", D, "leading-blank-lines"),
    ("blanks first", "   \n\t\n" + good(), "my-skill", D, "leading-blank-lines"),
    ("100,000 blank lines first", "\n" * 100_000 + good(), "my-skill", D, "leading-blank-lines"),
    ("four dashes", "-" + good(), "my-skill", D, "fence"),
    ("four dashes at the end", good().replace("---\nDo", "----\nDo"), "my-skill", D, "fence"),
    ("blanks after a fence", good().replace("---\n", "---  \n"), "my-skill", D, "fence"),
    ("tab after a fence", good().replace("---\n", "---\t\n"), "my-skill", D, "fence"),
    ("dots at the end", good().replace("---\nDo", "...\nDo"), "my-skill", D, "fence"),
    ("no closing fence", good().replace("---\nDo", "\nDo"), "my-skill", D, "unclosed-frontmatter"),
    ("no closing fence before a heading", good().replace("---\nDo", "# Title\nDo"), "my-skill", D, "unclosed-frontmatter"),
    ("in a code fence", "```yaml\n" + good() + "```\n", "my-skill", D, "text-before-frontmatter"),
    ("a comment first", "<!-- licence -->\n" + good(), "my-skill", D, "text-before-frontmatter"),
    # no frontmatter
    ("no frontmatter", "# Title\n\nFirst paragraph\nof two lines.\n\nSecond.\n", "my-skill", "First paragraph of two lines.", "frontmatter-missing"),
    ("a heading only", "# Title only\n", "my-skill", "Title only", "frontmatter-missing"),
    ("text after the heading", "# Title\nText at once.\n", "my-skill", "Text at once.", "frontmatter-missing"),
    ("empty frontmatter", doc("", "The first paragraph.\n"), "my-skill", "The first paragraph.", "name-missing"),
    ("comment only", doc("# nothing\n", "The first paragraph.\n"), "my-skill", "The first paragraph.", "description-missing"),
    ("a list", doc("- a\n- b\n", "The first paragraph.\n"), "my-skill", "The first paragraph.", "yaml-not-a-mapping"),
    ("a text", doc("just text\n", "The first paragraph.\n"), "my-skill", "The first paragraph.", "yaml-not-a-mapping"),
    ("no name", doc(f"description: {D}\n"), "my-skill", D, "name-missing"),
    ("empty name", doc(f"name:\ndescription: {D}\n"), "my-skill", D, "name-missing"),
    ("no description", doc("name: my-skill\n", "What it does.\n"), "my-skill", "What it does.", "description-missing"),
    ("empty description", doc("name: my-skill\ndescription:\n", "What it does.\n"), "my-skill", "What it does.", "description-missing"),
    # YAML that is rejected
    ("unquoted colon", doc("name: my-skill\ndescription: Use: when needed\n"), "my-skill", "Use: when needed", "yaml-unquoted-colon"),
    ("two unquoted colons", doc("name: my-skill\ndescription: a: b: c\n"), "my-skill", "a: b: c", "yaml-unquoted-colon"),
    ("colon at the end", doc("name: my-skill\ndescription: as follows:\nlicense: MIT\n"), "my-skill", "as follows:", "yaml-unquoted-colon"),
    ("colon over two lines", doc("name: my-skill\ndescription: Use: when\n  needed: now\n"), "my-skill", "Use: when needed: now", "yaml-unquoted-colon"),
    ("unquoted star", doc("name: my-skill\ndescription: **bold** text\n"), "my-skill", "**bold** text", "yaml-unquoted-alias"),
    ("a star alone", doc("name: my-skill\ndescription: *all* of it\n"), "my-skill", "*all* of it", "yaml-unquoted-alias"),
    ("unquoted ampersand", doc("name: my-skill\ndescription: & more: x\n"), "my-skill", "& more: x", "yaml-unquoted-alias"),
    ("star in a list", doc(f"name: my-skill\ndescription: {D}\nallowed-tools:\n  - *\n  - Read\n"), "my-skill", D, "yaml-unquoted-alias"),
    ("globs with stars", doc(f"name: my-skill\ndescription: {D}\nglobs: **/*.py\n"), "my-skill", D, "yaml-unquoted-alias"),
    ("at sign", doc("name: my-skill\ndescription: @mention it\n"), "my-skill", "@mention it", "yaml-special-character"),
    ("backtick", doc("name: my-skill\ndescription: `code` it\n"), "my-skill", "`code` it", "yaml-special-character"),
    ("percent", doc("name: my-skill\ndescription: %d items\n"), "my-skill", "%d items", "yaml-special-character"),
    ("open bracket", doc("name: my-skill\ndescription: [WIP] a thing\n"), "my-skill", "[WIP] a thing", "yaml-special-character"),
    ("open brace", doc("name: my-skill\ndescription: {x} a thing\n"), "my-skill", "{x} a thing", "yaml-special-character"),
    ("tab for indentation", good("metadata:\n\ta: b\n"), "my-skill", D, "yaml-tab"),
    ("tab before a value", doc(f"name:\tmy-skill\ndescription: {D}\nmetadata:\n\tx: y\n"), "my-skill", D, "yaml-tab"),
    ("unknown escape", doc('name: my-skill\ndescription: "match \\d+"\n'), "my-skill", "match \\d+", "yaml-bad-escape"),
    ("Windows path", doc('name: my-skill\ndescription: "C:\\Users\\me"\n'), "my-skill", "C:\\Users\\me", "yaml-bad-escape"),
    ("open double quote", doc('name: my-skill\ndescription: "never closed\n'), "my-skill", "never closed", "yaml-stray-quote"),
    ("open single quote", doc("name: my-skill\ndescription: 'never closed\n"), "my-skill", "never closed", "yaml-stray-quote"),
    ("text after a quote", doc('name: my-skill\ndescription: "Quoted" and more\n'), "my-skill", 'Quoted" and more', "yaml-stray-quote"),
    ("apostrophe in single quotes", doc("name: my-skill\ndescription: 'it's here'\n"), "my-skill", "it's here", "yaml-stray-quote"),
    ("quotes in quotes", doc('name: my-skill\ndescription: "say "hi" now"\n'), "my-skill", 'say "hi" now', "yaml-stray-quote"),
    ("no space after the colon", doc("name:my-skill\ndescription: Use: it\n"), "my-skill", "Use: it", "yaml-missing-space"),
    ("a block without indentation", doc("name: my-skill\ndescription: |\nFirst line.\nSecond line.\n"), "my-skill", "First line.\nSecond line.", "yaml-block"),
    ("a folded block without indentation", doc("name: my-skill\ndescription: >-\nFirst line.\nSecond line.\n"), "my-skill", "First line. Second line.", "yaml-block"),
    ("a wrapped line at the margin", doc("name: my-skill\ndescription: First line\nand second line.\n"), "my-skill", "First line and second line.", "yaml-invalid"),
    ("a stray line first", doc("hello there\nname: my-skill\ndescription: Use: it\n"), "my-skill", "Use: it", "yaml-stray-line"),
    ("a control character", doc("name: my-skill\ndescription: a\x07b\n"), "my-skill", "a\x07b", "yaml-invalid"),
    ("a tag nobody knows", doc("name: my-skill\ndescription: !x y: z\n"), "my-skill", "!x y: z", "yaml-special-character"),
    ("a broken neighbour", doc(f"license: a: b\nname: my-skill\ndescription: {D}\n"), "my-skill", D, "yaml-unquoted-colon"),
    ("a broken nested value", good("metadata:\n  note: a: b\n  other: fine\n"), "my-skill", D, "yaml-unquoted-colon"),
    ("a key twice", doc(f"name: other\nname: my-skill\ndescription: {D}\n"), "my-skill", D, "yaml-duplicate-key"),
    ("a nested key twice", good("metadata:\n  a: 1\n  a: 2\n"), "my-skill", D, "yaml-duplicate-key"),
    # right answers, not silent ones
    ("a number sign in a description", doc("name: my-skill\ndescription: Issues # and tags\n"), "my-skill", "Issues # and tags", "yaml-hash-in-text"),
    ("a YAML bomb", doc("name: my-skill\na: &a [x,x,x,x,x,x,x,x,x]\n" + "".join(f"{chr(98 + i)}: &{chr(98 + i)} [{', '.join(['*' + chr(97 + i)] * 9)}]\n" for i in range(8)), "What it does.\n"), "my-skill", "What it does.", "yaml-bomb"),
    # shapes
    ("a name that is a list", doc(f"name:\n  - a\ndescription: {D}\n"), "my-skill", D, "name-not-text"),
    ("a description that is a list", doc("name: my-skill\ndescription:\n  - one\n  - two\n"), "my-skill", "one, two", "description-not-text"),
    ("a description that is a mapping", doc("name: my-skill\ndescription:\n  what: one\n  when: two\n"), "my-skill", "what: one; when: two", "description-not-text"),
    ("metadata as text", good("metadata: v1\n"), "my-skill", D, "metadata-not-mapping"),
    ("metadata with lists", good("metadata:\n  tags:\n    - a\n    - b\n"), "my-skill", D, "metadata-not-text"),
    ("compatibility as a list", good("compatibility:\n  - git\n  - jq\n"), "my-skill", D, "compatibility-not-text"),
    ("a license as a mapping", good("license:\n  name: MIT\n"), "my-skill", D, "license-not-text"),
    ("servers as text", good("mcp_tools: x\n"), "my-skill", D, "mcp_tools-not-mapping"),
    ("fields in capitals", doc(f"Name: my-skill\nDescription: {D}\n"), "my-skill", D, "field-name"),
    ("another name of a field", good("allowed_tools: Read\n"), "my-skill", D, "field-name"),
    ("a trigger without words", good("trigger:\n  type: keyword\n"), "my-skill", D, "trigger-empty"),
    ("an input without a good name", good("inputs:\n  - name: a b\n"), "my-skill", D, "input-name"),
    # beyond the specification's bounds
    ("a name unlike the folder", doc(f"name: other\ndescription: {D}\n"), "other", D, "name-folder"),
    ("a name in capitals", doc(f"name: My Skill\ndescription: {D}\n"), "My Skill", D, "name-case"),
    ("a name with blanks", doc(f"name: my skill\ndescription: {D}\n"), "my skill", D, "name-characters"),
    ("a name with XML", doc(f"name: <b>x</b>\ndescription: {D}\n").replace("</b>", "&"), "<b>x&", D, "name-characters"),
    ("a name with hyphens in a row", doc(f"name: a--b\ndescription: {D}\n"), "a--b", D, "name-hyphens"),
    ("a long name", doc(f"name: {'a' * 65}\ndescription: {D}\n"), "a" * 65, D, "name-length"),
    ("a long description", doc(f"name: my-skill\ndescription: {'x' * 1025}\n"), "my-skill", "x" * 1025, "description-length"),
    ("a long compatibility", good(f"compatibility: {'x' * 501}\n"), "my-skill", D, "compatibility-length"),
    ("a long frontmatter", good("metadata:\n" + "".join(f"  k{i}: {'v' * 60}\n" for i in range(1500))), "my-skill", D, "frontmatter-too-long"),
    ("a long body", good() + "x" * (2 * MAX_FILE_BYTES), "my-skill", D, "file-too-long"),
]  # fmt: skip

REFUSED: list[tuple[str, str | bytes, str]] = [
    ("an empty file", b"", "empty"),
    ("blanks only", b" \n\t\n \n", "empty"),
    ("NUL bytes only", b"\0" * 100, "empty"),
    ("a mark only", b"\xef\xbb\xbf", "empty"),
    ("fences only", b"---\n---\n", "empty"),
    ("a name that climbs out", doc(f"name: ../x\ndescription: {D}\n"), "name-unsafe"),
    ("a name deeper out", doc(f"name: a/../../x\ndescription: {D}\n"), "name-unsafe"),
    ("an absolute name", doc(f"name: /etc/x\ndescription: {D}\n"), "name-unsafe"),
    ("a backslash", doc(f"name: ..\\x\ndescription: {D}\n"), "name-unsafe"),
    ("dots", doc(f"name: ..\ndescription: {D}\n"), "name-unsafe"),
    ("a newline", doc(f'name: "a\\nb"\ndescription: {D}\n'), "name-unsafe"),
    ("an escape character", doc(f'name: "a\\eb"\ndescription: {D}\n'), "name-unsafe"),
    ("a line separator", doc(f'name: "a\\Lb"\ndescription: {D}\n'), "name-unsafe"),
    ("a name longer than a file's", doc(f"name: {'a' * 256}\ndescription: {D}\n"), "name-unsafe"),
    ("no description at all", doc("name: my-skill\n", ""), "description-missing"),
]  # fmt: skip


def write(root: Path, data: str | bytes, folder: str = "my-skill") -> Path:
    file = root / folder / "SKILL.md"
    file.parent.mkdir(parents=True)
    file.write_bytes(data if isinstance(data, bytes) else data.encode())
    return file


def test_the_tables_have_their_size() -> None:
    assert len(MENDED) + len(REFUSED) >= 70
    assert len({case for case, *_ in MENDED + REFUSED}) == len(MENDED) + len(REFUSED)


@pytest.mark.parametrize(("case", "data", "name", "description", "code"), MENDED, ids=[row[0] for row in MENDED])
def test_a_malformed_file_loads_and_says_what_was_mended(
    tmp_path: Path, case: str, data: str | bytes, name: str, description: str, code: str
) -> None:
    file = write(tmp_path, data)

    skill = read_skill(file)

    assert (skill.name, skill.description) == (name, description)
    found = {each.code: each for each in skill.diagnostics}
    assert code in found, f"{case}: {sorted(found)}"
    assert found[code].path == str(file)
    assert found[code].fix or found[code].severity == "warning"
    if len(data) < 100_000:
        assert skill.content.strip("` \n").endswith(
            ("Do it.", "paragraph.", "does.", "Second.", "Title only", "at once.")
        )
        assert "---" not in skill.content


@pytest.mark.parametrize(("case", "data", "code"), REFUSED, ids=[row[0] for row in REFUSED])
def test_what_cannot_be_a_skill_is_refused_with_the_reason(
    tmp_path: Path, case: str, data: str | bytes, code: str
) -> None:
    with pytest.raises(SkillRefused) as caught:
        read_skill(write(tmp_path, data))
    assert code in {each.code for each in caught.value.diagnostics if each.severity == "error"}, case
    assert caught.value.exit_code == 2


def test_a_library_of_all_of_them_loads_everything_that_can_be(tmp_path: Path) -> None:
    folders = {f"case-{i}": data for i, (_, data, *_) in enumerate(MENDED)}
    folders |= {f"bad-{i}": data for i, (_, data, _) in enumerate(REFUSED)}
    for folder, data in folders.items():
        write(tmp_path, data, folder)
    registry = SkillRegistry()
    registry.discover([tmp_path])

    wanted = {read_skill(tmp_path / folder).name for folder in folders if folder.startswith("case-")}
    assert {skill.name for skill in registry.list_all()} == wanted
    refused = {
        Path(each.path).parent.name
        for each in registry.diagnostics
        if each.severity == "error" and each.code != "yaml-bomb"
    }
    assert refused == {folder for folder in folders if folder.startswith("bad-")}


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("one --- two", "one --- two"),
        ("'--- x'", "--- x"),
        ('"a: b # c"', "a: b # c"),
        ("issue #12 and C#", "issue #12 and C#"),
        ("http://x.y/z", "http://x.y/z"),
        ("yes", "yes"),
        ("1.10", "1.10"),
        ("2024-01-01", "2024-01-01"),
        ("0x1F", "0x1F"),
        ("null", "null"),
        (">\n  folded\n  text", "folded text"),
        ("|\n  two\n  lines\n  ---\n  more", "two\nlines\n---\nmore"),
        ("'it''s'", "it's"),
        ('"tab\\tnew\\u00e9"', "tab\tnewé"),
        ("plain over\n  two lines", "plain over two lines"),
    ],
)
def test_a_value_means_what_it_says(tmp_path: Path, text: str, value: str) -> None:
    skill = read_skill(write(tmp_path, doc(f"name: my-skill\ndescription: {text}\n")))
    assert skill.description == value
    assert [each.code for each in skill.diagnostics if each.code != "yaml-hash-in-text"] == []


@pytest.mark.parametrize("name", ["yes", "no", "on", "null", "1e3", "2024", "true", "0o17"])
def test_a_word_of_yaml_is_a_name_like_any_other(tmp_path: Path, name: str) -> None:
    skill = read_skill(write(tmp_path, doc(f"name: {name}\ndescription: {D}\n"), name))
    assert (skill.name, skill.diagnostics) == (name, ())


@pytest.mark.parametrize(
    ("header", "trigger"),
    [
        ("triggers: [git, GitHub]\n", KeywordTrigger(("git", "GitHub"))),
        ("triggers:\n  - a b\n  - re:x+\n", KeywordTrigger(("a b", "re:x+"))),
        ("trigger: git, hub\n", KeywordTrigger(("git", "hub"))),
        ("trigger: null\n", None),
        ("trigger:\n", None),
        ("trigger: []\n", None),
        ("trigger:\n  type: keyword\n  keywords: [a]\n", KeywordTrigger(("a",))),
        ("trigger:\n  type: task\n  triggers: [/go]\n", TaskTrigger(("/go",))),
        ("trigger:\n  type: path\n  globs: ['*.py', 'a/{b,c}.x']\n", PathTrigger(("*.py", "a/{b,c}.x"))),
        ("globs: src/**/*.ts, *.{js,jsx}\n", PathTrigger(("src/**/*.ts", "*.{js,jsx}"))),
        ("globs: **/*.py\n", PathTrigger(("**/*.py",))),
        ("paths:\n  - docs/**\n", PathTrigger(("docs/**",))),
        ("applyTo: '**/*.md'\n", PathTrigger(("**/*.md",))),
        ("triggers: [fix]\ninputs:\n  - name: x\n", TaskTrigger(("fix",))),
        ("type: task\ntriggers: [fix]\n", TaskTrigger(("fix",))),
        ("triggers: [1, yes]\n", KeywordTrigger(("1", "yes"))),
    ],
)
def test_the_type_follows_from_the_file(tmp_path: Path, header: str, trigger: object) -> None:
    assert read_skill(write(tmp_path, good(header))).trigger == trigger


@pytest.mark.parametrize(
    ("header", "inputs"),
    [
        (
            "inputs:\n  - name: a\n    description: An A.\n    required: true\n",
            (InputMetadata("a", "An A.", True, None),),
        ),
        ("inputs:\n  - name: a\n    required: false\n", (InputMetadata("a", "", False, None),)),
        ("inputs:\n  - name: a\n    default: x\n", (InputMetadata("a", "", False, "x"),)),
        ("inputs:\n  - name: a\n    default: none\n", (InputMetadata("a", "", False, "none"),)),
        ("inputs:\n  - name: a\n    default: None\n", (InputMetadata("a", "", False, "None"),)),
        ("inputs:\n  - name: a\n    default: null\n", (InputMetadata("a", "", True, None),)),
        ("inputs:\n  - name: a\n    required: yes\n    default: 3\n", (InputMetadata("a", "", False, "3"),)),
        (
            "inputs:\n  a: An A.\n  b:\n    required: false\n",
            (InputMetadata("a", "An A."), InputMetadata("b", "", False)),
        ),
        ("inputs: [a, b]\n", (InputMetadata("a"), InputMetadata("b"))),
        ("inputs: a\n", (InputMetadata("a"),)),
    ],
)
def test_inputs_are_read_in_every_form(tmp_path: Path, header: str, inputs: object) -> None:
    assert read_skill(write(tmp_path, good(header))).inputs == inputs


def test_everything_of_the_specification_is_kept(tmp_path: Path) -> None:
    skill = read_skill(write(tmp_path, good(
        "license: MIT\ncompatibility: Needs git\nmetadata:\n  author: me\n  version: '1.0'\n"
        "allowed-tools: Bash(git:*) Read\nmcp_tools:\n  mcpServers:\n    s:\n      command: x\n"
        "hooks:\n  a: b\ndisable-model-invocation: true\nother: kept\n")))  # fmt: skip
    assert (skill.license, skill.compatibility) == ("MIT", "Needs git")
    assert skill.metadata == {"author": "me", "version": "1.0"}
    assert skill.allowed_tools == ("Bash(git:*)", "Read")
    assert skill.mcp_tools == {"mcpServers": {"s": {"command": "x"}}}
    assert (skill.hooks, skill.invocable, skill.frontmatter["other"]) == (True, False, "kept")
    assert (skill.kind, skill.diagnostics) == ("agent", ())


def test_the_body_is_read_when_it_is_asked_for_and_not_before(tmp_path: Path) -> None:
    file = write(tmp_path, good() + "# Steps\n\n1. Go.\n")
    registry = SkillRegistry()
    registry.discover([tmp_path])
    file.write_text(good() + "Changed later.\n")
    first = registry.get("my-skill")
    assert first.content.endswith("Changed later.")
    file.write_text(good() + "Changed again.\n")
    assert first.content.endswith("Changed later.")
    assert registry.get("my-skill").content_hash != first.content_hash


def test_a_skill_made_in_code_has_its_content_and_its_hash() -> None:
    one, same, other = Skill(name="a", content="x"), Skill(name="a", content="x"), Skill(name="a", content="y")
    assert (one.content, one.body, one.kind) == ("x", "x", "repository")
    assert one.content_hash == same.content_hash != other.content_hash
    assert Skill(name="a").content == ""


def test_a_file_without_frontmatter_has_its_folders_name_whatever_it_is(tmp_path: Path) -> None:
    skill = read_skill(write(tmp_path, "What it does.\n", "My Folder"))
    assert (skill.name, [each.code for each in skill.diagnostics]) == (
        "My Folder",
        ["frontmatter-missing", "description-missing"],
    )


def test_only_one_megabyte_of_a_body_is_ever_read(tmp_path: Path) -> None:
    file = write(tmp_path, good())
    with file.open("ab") as handle:
        handle.write(b"x\n" * (2 << 20))
    skill = read_skill(file)
    assert skill.document.truncated
    assert len(skill.content) <= MAX_FILE_BYTES


HOSTILE = {
    "flow lists": "a: " + "[" * 60_000,
    "flow mappings": "a: " + "{a: " * 15_000,
    "compact lists": "- " * 30_000,
    "complex keys": "? " * 30_000,
    "indentation": "".join(" " * depth + "a:\n" for depth in range(350)),
    "unquoted colons": "a: b: c\n" * 8_000,
    "keys": "".join(f"k{i}: b: c\n" for i in range(6_000)),
    "a sign after blanks": "description: a #" + " " * 60_000 + "x",
    "stray lines": "!!!\n" * 15_000,
    "tabs": "a:\n" + "\tb: c\n" * 9_000,
    "aliases": "a: &a [x]\n" + "b: [*a, *a, *a]\n" * 3_000,
    "an alias of itself": "a: &a [*a]",
}


@pytest.mark.parametrize("case", HOSTILE)
def test_a_frontmatter_made_to_be_deep_or_slow_is_neither(tmp_path: Path, case: str) -> None:
    file = write(tmp_path, doc(f"name: my-skill\n{HOSTILE[case]}\n", "What it does.\n"))
    for mode in ("lenient", "strict"):
        reading = try_read(file, mode)
        assert 0 < len(reading.diagnostics) <= 2 * MAX_DIAGNOSTICS + 1
    assert read_skill(file).description


def test_links_out_of_the_folder_and_in_circles_are_refused(tmp_path: Path) -> None:
    outside = tmp_path / "outside.md"
    outside.write_text(good())
    for name, target in {"out": outside, "circle": Path("SKILL.md"), "gone": tmp_path / "nowhere"}.items():
        (tmp_path / "lib" / name).mkdir(parents=True)
        (tmp_path / "lib" / name / "SKILL.md").symlink_to(target)
    (tmp_path / "lib" / "inside").mkdir()
    (tmp_path / "lib" / "inside" / "real.md").write_text(good())
    (tmp_path / "lib" / "inside" / "SKILL.md").symlink_to("real.md")
    (tmp_path / "lib" / "loop").symlink_to(tmp_path / "lib")
    registry = SkillRegistry()
    registry.discover([tmp_path / "lib"])

    assert [str(skill.path.parent.name) for skill in registry.list_all()] == ["inside"]
    assert {Path(each.path).parent.name for each in registry.diagnostics if each.severity == "error"} == {
        "out",
        "circle",
        "gone",
    }


def test_what_is_no_regular_file_is_refused_at_once(tmp_path: Path) -> None:
    (tmp_path / "pipe").mkdir()
    os.mkfifo(tmp_path / "pipe" / "SKILL.md")
    assert {each.code for each in try_read(tmp_path / "pipe").diagnostics} == {"not-a-file"}
    assert {each.code for each in try_read(tmp_path / "absent").diagnostics} == {"unreadable"}
    assert {each.code for each in try_read("a\0b").diagnostics} == {"unreadable"}


@pytest.mark.parametrize(
    ("body", "paragraph"),
    [
        ("# T\n\n<!-- x -->\n\nText.", "Text."),
        ("![badge](x)\n\nText\nover lines.\n\nMore.", "Text over lines."),
        ("```\ncode\n```", "code ```"),
        ("", None),
        ("# Only a heading", "Only a heading"),
        ("x" * 3000, "x" * 1024),
    ],
)
def test_the_first_paragraph_stands_in_for_a_description(body: str, paragraph: str | None) -> None:
    assert extract_first_paragraph(body) == paragraph
