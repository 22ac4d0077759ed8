"""The registry: discovery, precedence, trust, search."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

from bough.errors import InvalidInput, NotFound, PermissionDenied, StoreError
from bough.skills import KeywordTrigger, Skill, SkillRegistry, TriggerIndex, TrustStore
from bough.skills.trust.lock import NAME, lock_all, write_lock


def write_skill(
    root: Path, name: str, description: str = "Counts words.", *, extra: str = "", body: str = "Do it."
) -> Path:
    folder = root / name
    folder.mkdir(parents=True, exist_ok=True)
    file = folder / "SKILL.md"
    file.write_text(f"---\nname: {name}\ndescription: {description}\n{extra}---\n{body}\n")
    return file


def names(registry: SkillRegistry) -> list[str]:
    """Of the skills that do not come with bough."""
    return [skill.name for skill in registry.list_all() if skill.scope != "builtin"]


def test_discover_returns_metadata_sorted_and_get_reads_the_body(tmp_path: Path) -> None:
    write_skill(tmp_path, "zebra")
    write_skill(tmp_path, "ant", "Ants.", body="# Ants\n\nCount them.")
    registry = SkillRegistry()

    found = registry.discover([tmp_path])

    assert [(skill.name, skill.description) for skill in found] == [("ant", "Ants."), ("zebra", "Counts words.")]
    assert registry.list_all() == found
    assert registry.get("ant").content == registry.get("ant").body == "# Ants\n\nCount them."


def test_a_missing_name_names_the_nearest(tmp_path: Path) -> None:
    write_skill(tmp_path, "code-review")
    registry = SkillRegistry()
    registry.discover([tmp_path])

    with pytest.raises(NotFound) as caught:
        registry.get("code-reviw")
    assert "code-review" in caught.value.hint


def test_one_bad_file_harms_no_other(tmp_path: Path) -> None:
    write_skill(tmp_path, "good")
    for name, data in {
        "nul": b"\0\0\0",
        "empty": b"",
        "binary": bytes(range(256)),
        "unsafe": b"---\nname: ../x\n---\nx",
    }.items():
        (tmp_path / name).mkdir()
        (tmp_path / name / "SKILL.md").write_bytes(data)
    (tmp_path / "fifo").mkdir()
    (tmp_path / "folder" / "SKILL.md").mkdir(parents=True)
    registry = SkillRegistry()

    names = [skill.name for skill in registry.discover([tmp_path, tmp_path / "absent"])]

    assert "good" in names
    refused = {Path(each.path).parent.name for each in registry.diagnostics if each.severity == "error"}
    assert {"empty", "nul", "unsafe", "folder"} <= refused


def test_the_first_root_wins_and_the_duplicate_is_named(tmp_path: Path) -> None:
    write_skill(tmp_path / "a", "same", "First.")
    second = write_skill(tmp_path / "b", "same", "Second.")
    registry = SkillRegistry()
    registry.discover([tmp_path / "a", tmp_path / "b"])

    assert registry.get("same").description == "First."
    [note] = registry.diagnostics
    assert (note.code, note.path) == ("duplicate-name", str(second))


def test_two_skills_of_one_name_in_one_scope_are_diagnosed_and_the_first_by_path_wins(tmp_path: Path) -> None:
    first, second = write_skill(tmp_path, "a", "First."), write_skill(tmp_path, "b", "Second.")
    for file in (first, second):
        file.write_text(file.read_text().replace(f"name: {file.parent.name}", "name: same"))
    registry = SkillRegistry()
    registry.discover([tmp_path])

    assert registry.get("same").description == "First."
    [note] = [each for each in registry.diagnostics if each.code == "duplicate-name"]
    assert note.path == str(second) and str(first) in note.message


def test_open_takes_every_scope_in_its_order(tmp_path: Path) -> None:
    home = tmp_path / "person" / ".bough"
    project = tmp_path / "project"
    inner = project / "inner"
    (project / ".git").mkdir(parents=True)
    places = {
        "configured": tmp_path / "configured",
        "inner": inner / ".agents" / "skills",
        "project": project / ".claude" / "skills",
        "user": tmp_path / "person" / ".agents" / "skills",
        "own": home / "skills",
        "installed": home / "installed",
    }
    for number, (label, root) in enumerate(places.items()):
        write_skill(root, f"only-{label}", label)
        for other in list(places)[number:]:
            write_skill(root, f"at-{other}", label)
    write_skill(tmp_path / ".agents" / "skills", "above-the-git-root")
    write_lock(home / "installed" / NAME, lock_all(home / "installed"))

    registry = SkillRegistry.open(inner, home=home, roots=[places["configured"]])

    assert {f"only-{label}" for label in places} <= {skill.name for skill in registry.list_all()}
    assert registry.metadata("at-installed").description == "configured"
    assert registry.metadata("at-inner").description == "configured"
    assert "above-the-git-root" not in registry
    scopes = {skill.name: skill.scope for skill in registry.list_all()}
    assert (scopes["only-inner"], scopes["only-own"], scopes["only-installed"]) == ("project", "user", "installed")


def test_project_skills_with_code_wait_for_trust(tmp_path: Path) -> None:
    home, project = tmp_path / "home", tmp_path / "project"
    (project / ".git").mkdir(parents=True)
    root = project / ".agents" / "skills"
    write_skill(root, "words-only")
    script = write_skill(root, "with-script").parent / "scripts" / "run.py"
    script.parent.mkdir()
    script.write_text("print(1)")
    write_skill(root, "with-servers", extra="mcp_tools:\n  mcpServers:\n    x:\n      command: x\n")
    write_skill(root, "with-hooks", extra="hooks:\n  PreToolUse: x\n")

    registry = SkillRegistry.open(project, home=home)

    assert names(registry) == ["words-only"]
    assert {skill.name for skill in registry.withheld} == {"with-script", "with-servers", "with-hooks"}
    with pytest.raises(PermissionDenied, match="not trusted"):
        registry.get("with-script")

    store = TrustStore(home)
    assert not store.is_trusted(project)
    store.trust(project)
    assert store.is_trusted(project)
    assert len(names(SkillRegistry.open(project, home=home))) == 4

    held = SkillRegistry.open(project, home=home)
    script.write_text("print(2)")
    assert not store.is_trusted(project)
    with pytest.raises(PermissionDenied, match="not trusted in its current state"):
        held.get("with-script")
    again = SkillRegistry.open(project, home=home)
    assert [skill.name for skill in again.withheld] == ["with-script"]

    assert store.revoke(project) and not store.revoke(project)
    assert names(SkillRegistry.open(project, home=home)) == ["words-only"]


@pytest.mark.parametrize("text", ["{", "[" * 100_000])
def test_a_broken_trust_file_trusts_nothing_and_says_so(tmp_path: Path, text: str) -> None:
    (tmp_path / "trust.json").write_text(text)
    with pytest.raises(StoreError, match="cannot read"):
        TrustStore(tmp_path).is_trusted(tmp_path / "project")
    file = write_skill(tmp_path / "project" / ".agents" / "skills", "coded")
    write_skill(tmp_path / "project" / ".agents" / "skills", "plain")
    (file.parent / "run.sh").write_text("true")
    registry = SkillRegistry.open(tmp_path / "project", home=tmp_path)
    assert (names(registry), [s.name for s in registry.withheld]) == (["plain"], ["coded"])
    with pytest.raises(StoreError):
        TrustStore(tmp_path).trust(tmp_path / "project")
    (file.parent / "run.sh").unlink()
    (tmp_path / "trust.json").write_text('{"version": 2, "projects": {"x": 7}}')
    assert TrustStore(tmp_path).is_trusted(tmp_path / "project")  # it carries no code


def test_an_untrusted_project_hides_no_skill_of_the_person(tmp_path: Path) -> None:
    home, project = tmp_path / "home", tmp_path / "project"
    theirs = write_skill(project / ".agents" / "skills", "deploy", "Theirs.")
    (theirs.parent / "scripts").mkdir()
    (theirs.parent / "scripts" / "x.sh").write_text("true")
    write_skill(home / "skills", "deploy", "Mine.")

    assert SkillRegistry.open(project, home=home).get("deploy").description == "Mine."


def test_in_the_home_folder_itself_the_skills_are_the_persons_own(tmp_path: Path) -> None:
    file = write_skill(tmp_path / ".agents" / "skills", "mine")
    (file.parent / "scripts").mkdir()
    (file.parent / "scripts" / "x.sh").write_text("true")

    registry = SkillRegistry.open(tmp_path, home=tmp_path / ".bough")

    assert (registry.metadata("mine").scope, registry.withheld, registry.diagnostics) == ("user", [], [])


def test_configured_roots_are_trusted(tmp_path: Path) -> None:
    file = write_skill(tmp_path / "roots", "runs")
    (file.parent / "scripts").mkdir()
    (file.parent / "scripts" / "x.sh").write_text("true")

    registry = SkillRegistry.open(tmp_path / "work", home=tmp_path / "home", roots=[tmp_path / "roots"])

    assert registry.get("runs").resources.scripts == ("scripts/x.sh",)


def test_search_ranks_names_over_descriptions_and_takes_any_text(tmp_path: Path) -> None:
    write_skill(tmp_path, "pdf-forms", "Fills in documents.")
    write_skill(tmp_path, "reports", "Writes reports, sometimes as PDF.")
    write_skill(tmp_path, "weather", "Tells the weather.", extra="keywords: [forecast, rain]\n")
    registry = SkillRegistry()
    registry.discover([tmp_path])

    assert [skill.name for skill in registry.search("fill a pdf form")] == ["pdf-forms", "reports"]
    assert [skill.name for skill in registry.search("will it rain?")] == ["weather"]
    assert registry.search('"') == registry.search("") == registry.search("NEAR( AND *") == []
    assert len(registry.search("pdf", limit=1)) == 1


def test_a_skill_made_in_code_is_found_like_any_other() -> None:
    registry = SkillRegistry()
    registry.add(Skill(name="made", description="Made in code.", content="Do this."))

    assert registry.get("made").content == "Do this."
    assert [skill.name for skill in registry.search("code")] == ["made"]
    for name in ("", "../x", "a\nb"):
        with pytest.raises(InvalidInput):
            registry.add(Skill(name=name, content="x"))


@pytest.mark.parametrize("words", [["count", "words"], ("count", "words"), "count"])
def test_a_trigger_takes_its_words_in_any_form(words: Any) -> None:
    skill = Skill(name="made", content="x", trigger=KeywordTrigger(words))
    registry = SkillRegistry()
    registry.add(skill)
    assert [match.keyword for match in TriggerIndex([skill]).match("Count them")] == ["Count"]
    assert [found.name for found in registry.search("count")] == ["made"]
    assert hash(skill.trigger) == hash(KeywordTrigger(tuple([words] if isinstance(words, str) else words)))


def test_the_index_is_used_and_a_changed_file_is_read_again(tmp_path: Path) -> None:
    home, root = tmp_path / "home", tmp_path / "roots"
    for number in range(20):
        write_skill(root, f"skill-{number}", extra="" if number % 2 else "triggers: [one, two]\n")
    write_skill(root, "input", extra="inputs: {a: A}\ndisable-model-invocation: true\nkeywords: [k]\n")
    write_skill(root, "paths", extra="globs: '*.py'\n")
    write_skill(root, "odd", '"a \\x1f b"')
    write_skill(root, "fixed", "a: b")
    write_skill(root, "two-lines", "|\n  One.\n  Two.")
    write_skill(root, "tab\tnewline\nname")
    (root / "refused").mkdir()
    (root / "refused" / "SKILL.md").touch()
    first = SkillRegistry.open(tmp_path / "w", home=home, roots=[root])
    second = SkillRegistry.open(tmp_path / "w", home=home, roots=[root])
    assert second.list_all() == first.list_all() and len(names(first)) == 25
    assert second.diagnostics == first.diagnostics != []

    write_skill(root, "skill-3", "Changed, and longer than before.")
    third = SkillRegistry.open(tmp_path / "w", home=home, roots=[root])
    assert third.metadata("skill-3").description == "Changed, and longer than before."


@pytest.mark.parametrize(
    "data", [b"", b"{", b"bough skills 3\n", b"bough skills 5\nx", b"bough skills 5", b"\xff", b"\n" * 100_000]
)
def test_a_broken_index_is_an_empty_one(tmp_path: Path, data: bytes) -> None:
    home, root = tmp_path / "home", tmp_path / "roots"
    write_skill(root, "one")
    SkillRegistry.open(tmp_path / "w", home=home, roots=[root])
    for file in (home / "cache").iterdir():
        file.write_bytes(data)

    assert names(SkillRegistry.open(tmp_path / "w", home=home, roots=[root])) == ["one"]


@pytest.mark.parametrize(
    "rest",
    ["7", "{", "[]", "[7]", "[[[1]]]", '[[], 7, "x", null, [], [], true]', '[[], "x", "y", [1, 2], [], [], true]',
     "[" * 100_000],
)  # fmt: skip
def test_a_foreign_entry_of_the_index_is_read_from_its_file(tmp_path: Path, rest: str) -> None:
    home, root = tmp_path / "home", tmp_path / "roots"
    write_skill(root, "one")
    SkillRegistry.open(tmp_path / "w", home=home, roots=[root])
    [file] = [each for each in (home / "cache").iterdir() if str(root) in each.read_text()]
    first, path, stamp, _, _, _ = file.read_text().split("\n")
    file.write_text("\n".join([first, path, stamp, "", "", rest]))

    assert names(SkillRegistry.open(tmp_path / "w", home=home, roots=[root])) == ["one"]


def test_a_change_of_the_same_length_and_a_change_back_are_seen(tmp_path: Path) -> None:
    home, root = tmp_path / "home", tmp_path / "roots"
    file = write_skill(root, "one", "First.")
    before = file.stat()

    def described() -> str:
        return SkillRegistry.open(tmp_path / "w", home=home, roots=[root]).metadata("one").description

    assert described() == "First."
    write_skill(root, "one", "Other.")
    assert (described(), file.stat().st_size) == ("Other.", before.st_size)
    (root / "two").write_text(file.read_text().replace("Other.", "Third."))
    os.utime(root / "two", ns=(before.st_atime_ns, before.st_mtime_ns))
    os.replace(root / "two", file)
    assert (described(), file.stat().st_mtime_ns) == ("Third.", before.st_mtime_ns)


def test_the_index_forgets_what_has_gone(tmp_path: Path) -> None:
    home, root = tmp_path / "home", tmp_path / "roots"
    file = write_skill(root, "one")
    write_skill(root, "two")
    SkillRegistry.open(tmp_path / "w", home=home, roots=[root])
    file.unlink()
    SkillRegistry.open(tmp_path / "w", home=home, roots=[root])
    known = "".join(index.read_text() for index in (home / "cache").iterdir())
    assert str(file) not in known and str(root / "two") in known


def test_a_skill_whose_file_has_hard_links_says_so(tmp_path: Path) -> None:
    file = write_skill(tmp_path / "skills", "counts")
    (file.parent / "scripts").mkdir()
    (file.parent / "scripts" / "count.py").write_text("print(1)\n")
    (tmp_path / "elsewhere.md").hardlink_to(file)
    registry = SkillRegistry()
    registry.discover([tmp_path / "skills"])

    with pytest.raises(PermissionDenied, match="has several hard links"):
        registry.snapshot(registry.get("counts"))
