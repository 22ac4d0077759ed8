"""Nothing fails silently: what a file means and does not say rightly is told, and what is not text is refused."""

from __future__ import annotations

import zipfile
from pathlib import Path

import pytest

from bough.agents.skills.activation import find_always_active
from bough.skills import PathTrigger, SkillRegistry
from bough.skills.find.discover import Root, discover
from bough.skills.read.parse import read_skill, split, try_read
from bough.skills.run.mcp import check_servers

HEAD = "---\nname: kit\ndescription: Does a thing.\n"


def write(tmp_path: Path, text: str | bytes) -> Path:
    folder = tmp_path / "kit"
    folder.mkdir(exist_ok=True)
    (folder / "SKILL.md").write_bytes(text if isinstance(text, bytes) else text.encode())
    return folder


@pytest.mark.parametrize(
    ("extra", "code", "says"),
    [
        ("triggers: ['re:(']\n", "trigger-bad-regex", "missing"),
        ("triggers: ['re:']\n", "trigger-bad-regex", "it is empty"),
        ("triggers: ['re:x*']\n", "trigger-bad-regex", "matches the empty string"),
        ("globs: ['[b-a].py']\n", "trigger-bad-glob", "invalid path pattern"),
        ("triggers: [word]\npaths: ['src/**']\n", "trigger-both", "`paths` is ignored"),
        ("inputs: [a]\nglobs: ['src/**']\n", "trigger-both", "`paths` is ignored"),
        ("descripton: x\n", "field-misspelt", "`description`"),
        ("trigers: [x]\n", "field-misspelt", "`triggers`"),
        ("keyword: [x]\n", "field-misspelt", "`keywords`"),
    ],
)
def test_it_is_told_when_read_when_found_and_in_a_run(tmp_path: Path, extra: str, code: str, says: str) -> None:
    folder = write(tmp_path, f"{HEAD}{extra}---\nDo it.\n")
    (note,) = [each for each in try_read(folder).diagnostics if each.code == code]
    assert note.severity == "warning" and note.fix and says in note.message
    assert code in [each.code for each in discover(Root(tmp_path)).diagnostics]
    registry = SkillRegistry()
    registry.discover([tmp_path])
    assert [name for name, _ in find_always_active(registry).omitted] == ["kit"]


def test_what_other_clients_write_is_no_misspelling(tmp_path: Path) -> None:
    fields = "version: 1\nauthor: a\nmodel: x\nalwaysApply: true\nallowed_tools: Read\n"
    folder = write(tmp_path, f"{HEAD}{fields}---\nx\n")
    assert [each.code for each in try_read(folder).diagnostics] == ["field-name"]


def test_servers_that_cannot_be_read_are_told(tmp_path: Path) -> None:
    folder = write(tmp_path, f"{HEAD}---\nDo it.\n")
    for text in ("{", "[]", '{"a": {"args": []}}', '{"a": {"command": "${NOT_SET_ANYWHERE}"}}'):
        (folder / ".mcp.json").write_text(text)
        (note,) = check_servers(read_skill(folder), {})
        assert (note.code, note.severity) == ("mcp-invalid", "warning") and note.fix
    (folder / ".mcp.json").write_text('{"a": {"command": "x"}}')
    assert check_servers(read_skill(folder), {}) == ()


def test_a_file_that_is_not_text_is_refused(tmp_path: Path) -> None:
    with zipfile.ZipFile(tmp_path / "x.zip", "w") as archive:
        archive.writestr("SKILL.md", HEAD)
    for data in (
        b"\x7fELF\x02\x01\x01" + b"\0" * 100,
        (tmp_path / "x.zip").read_bytes(),
        b"%PDF-1.7\n...",
        b"\x89PNG\r\n\x1a\n",
        b"text " * 100 + b"\0" * 50,
        b"text \x01\x02\x03\x04" * 50,
    ):
        reading = try_read(write(tmp_path, data))
        assert reading.skill is None and [each.code for each in reading.diagnostics] == ["binary"]
    for text in (f"{HEAD}---\nx\0y\n", f"{HEAD}---\n\x1b[1mx\n"):
        assert try_read(write(tmp_path, text)).skill is not None
    assert try_read(write(tmp_path, f"{HEAD}---\nx\n".encode("utf-16"))).skill is not None


@pytest.mark.parametrize(
    ("text", "header", "body"),
    [
        ("---\nname: a\n--- Some text\nMore.\n", "name: a\n", "Some text\nMore.\n"),
        ("---\nname: a\n---# Title\nMore.\n---\nEnd.\n", "name: a\n", "# Title\nMore.\n---\nEnd.\n"),
        ("---\nname: a\n--- Some\n\n# Title\n\n---\n", "name: a\n", "Some\n\n# Title\n\n---\n"),
        ("---\nname: a\nother: |\n--- not this\nb: c\n---\nBody.\n", None, "Body.\n"),
        ("---\nname: a\n---\nBody.\n--- text\n", "name: a\n", "Body.\n--- text\n"),
    ],
)
def test_a_closing_fence_with_text_behind_it_splits_where_a_person_would(
    text: str, header: str | None, body: str
) -> None:
    found = split(text)
    assert found.body == body
    assert header is None or found.header == header
    assert ("fence-with-text" in [each.code for each in found.diagnostics]) == (body.startswith(("Some", "# Title")))


def test_a_skill_keeps_one_kind_of_trigger(tmp_path: Path) -> None:
    skill = read_skill(write(tmp_path, f"{HEAD}paths: ['src/**']\n---\nx\n"))
    assert skill.trigger == PathTrigger(("src/**",))
