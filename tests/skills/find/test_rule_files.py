"""Rule files of other clients."""

from __future__ import annotations

from pathlib import Path

from bough.agents.skills.activation import find_always_active
from bough.skills import KeywordTrigger, PathTrigger, SkillRegistry
from bough.skills.find.rule_files import read_rules


def put(root: Path, name: str, text: str) -> Path:
    file = root / name
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(text)
    return file


def test_every_format_becomes_a_skill_under_its_path(tmp_path: Path) -> None:
    (tmp_path / ".git").mkdir()
    for name in ("AGENTS.md", "CLAUDE.md", "GEMINI.md", "CONVENTIONS.md", ".cursorrules", ".windsurfrules",
                 ".github/copilot-instructions.md", ".clinerules/style.md"):  # fmt: skip
        put(tmp_path, name, f"Rules of {name}.\n")
    put(tmp_path, ".cursor/rules/always.mdc", "---\ndescription: A\nglobs:\nalwaysApply: true\n---\nAlways.\n")
    put(
        tmp_path,
        ".cursor/rules/ts.mdc",
        "---\ndescription: T\nglobs: *.ts,src/**/*.tsx\nalwaysApply: false\n---\nTs.\n",
    )
    put(tmp_path, ".cursor/rules/asked.mdc", "---\ndescription: On request\nalwaysApply: false\n---\nAsked.\n")
    put(tmp_path, ".github/instructions/py.instructions.md", "---\napplyTo: '**/*.py'\n---\nPy.\n")
    put(tmp_path, ".github/instructions/all.instructions.md", "---\napplyTo: '**'\n---\nAll.\n")
    put(tmp_path, "pkg/inner/AGENTS.md", "Inner rules.\n")
    put(tmp_path, "node_modules/x/AGENTS.md", "Not ours.\n")
    put(tmp_path, ".hidden/AGENTS.md", "Not ours.\n")
    put(tmp_path, "a/b/c/d/AGENTS.md", "Too deep is deeper than this.\n")

    skills, notes = read_rules(tmp_path)

    triggers = {skill.name: skill.trigger for skill in skills}
    always = {name for name, trigger in triggers.items() if trigger is None}
    assert always == {
        "AGENTS.md", "CLAUDE.md", "GEMINI.md", "CONVENTIONS.md", ".cursorrules", ".windsurfrules",
        ".github/copilot-instructions.md", ".clinerules/style.md", ".cursor/rules/always.mdc",
        ".github/instructions/all.instructions.md",
    }  # fmt: skip
    assert {name: trigger for name, trigger in triggers.items() if trigger is not None} == {
        ".cursor/rules/ts.mdc": PathTrigger(("*.ts", "src/**/*.tsx")),
        ".cursor/rules/asked.mdc": KeywordTrigger(()),
        ".github/instructions/py.instructions.md": PathTrigger(("**/*.py",)),
        "pkg/inner/AGENTS.md": PathTrigger(("pkg/inner/**",)),
        "a/b/c/d/AGENTS.md": PathTrigger(("a/b/c/d/**",)),
    }
    assert {skill.kind for skill in skills if skill.trigger is None} == {"repository"}
    assert {each.code for each in notes} == {"yaml-unquoted-alias"}


def test_sub_folders_of_rules_and_rules_of_windsurf_and_claude_are_read(tmp_path: Path) -> None:
    """As their clients read them: in any sub-folder, always active or for the files of their patterns."""
    (tmp_path / ".git").mkdir()
    put(tmp_path, ".cursor/rules/sub/py.mdc", "---\nglobs: '*.py'\nalwaysApply: false\n---\nPy.\n")
    put(tmp_path, ".cursor/rules/sub/deep/always.mdc", "---\nalwaysApply: true\n---\nDeep.\n")
    put(tmp_path, ".cursor/rules/sub/notes.md", "Not a rule.\n")
    put(tmp_path, ".github/instructions/sub/all.instructions.md", "---\napplyTo: '**'\n---\nAll.\n")
    put(tmp_path, ".clinerules/sub/style.md", "Style.\n")
    put(tmp_path, ".windsurf/rules/plain.md", "Plain.\n")
    put(tmp_path, ".windsurf/rules/on.md", "---\ntrigger: always_on\n---\nOn.\n")
    put(tmp_path, ".windsurf/rules/ts.md", "---\ntrigger: glob\nglobs: '**/*.ts, src/**'\n---\nTs.\n")
    put(tmp_path, ".windsurf/rules/bare.md", "---\ntrigger: glob\n---\nNo pattern.\n")
    put(tmp_path, ".windsurf/rules/sub/asked.md", "---\ntrigger: manual\n---\nAsked.\n")
    put(tmp_path, ".windsurf/rules/chosen.md", "---\ntrigger: model_decision\ndescription: D\n---\nChosen.\n")
    put(tmp_path, ".claude/rules/api/rest.md", "---\npaths:\n  - 'src/api/**'\n---\nApi.\n")
    outside = put(tmp_path.parent, "outside.mdc", "---\nalwaysApply: true\n---\nNot of this project.\n")
    (tmp_path / ".cursor/rules/sub/out.mdc").symlink_to(outside)

    registry = SkillRegistry.open(tmp_path, home=tmp_path.parent / "home")

    on_request = KeywordTrigger(())
    triggers = {skill.name: skill.trigger for skill in registry.list_all() if skill.scope == "project"}
    assert triggers == {
        ".cursor/rules/sub/py.mdc": PathTrigger(("*.py",)),
        ".cursor/rules/sub/deep/always.mdc": None,
        ".github/instructions/sub/all.instructions.md": None,
        ".clinerules/sub/style.md": None,
        ".windsurf/rules/plain.md": None,
        ".windsurf/rules/on.md": None,
        ".windsurf/rules/ts.md": PathTrigger(("**/*.ts", "src/**")),
        ".windsurf/rules/bare.md": on_request,
        ".windsurf/rules/sub/asked.md": on_request,
        ".windsurf/rules/chosen.md": on_request,
        ".claude/rules/api/rest.md": PathTrigger(("src/api/**",)),
    }
    assert "Deep." in find_always_active(registry).text
    assert [note.code for note in registry.diagnostics] == ["link-out"]


def test_a_folder_of_rules_with_too_many_names_is_reported(tmp_path: Path) -> None:
    (tmp_path / ".git").mkdir()
    folder = tmp_path / ".windsurf" / "rules"
    for number in range(10_001):
        put(folder, f"{number}.txt", "")
    put(folder, "sub/rule.md", "Not reached.\n")
    skills, notes = read_rules(tmp_path)
    assert skills == []
    assert [note.code for note in notes] == ["bound-files"]
    assert "sub" in notes[0].message


def test_links_count_once_and_lead_nowhere_outside(tmp_path: Path) -> None:
    project = tmp_path / "project"
    (project / ".git").mkdir(parents=True)
    put(project, "AGENTS.md", "The rules.\n")
    (project / "CLAUDE.md").symlink_to("AGENTS.md")
    put(tmp_path, "outside.md", "Not ours.\n")
    (project / "GEMINI.md").symlink_to(tmp_path / "outside.md")
    (project / "loop").symlink_to(project)

    skills, notes = read_rules(project)

    assert [skill.name for skill in skills] == ["AGENTS.md"]
    assert [each.code for each in notes] == ["link-out"]


def test_one_bad_rule_file_harms_no_other(tmp_path: Path) -> None:
    put(tmp_path, "AGENTS.md", "")
    put(tmp_path, "CLAUDE.md", "Good.\n")
    (tmp_path / "GEMINI.md").write_bytes(b"\xff\xfe\x00")
    (tmp_path / ".cursorrules").mkdir()

    skills, notes = read_rules(tmp_path)

    assert "CLAUDE.md" in {skill.name for skill in skills}
    assert "empty" in {each.code for each in notes}


def test_the_registry_serves_them_and_shows_a_model_only_what_it_may_ask_for(tmp_path: Path) -> None:
    put(tmp_path, "AGENTS.md", "---\nname: ../evil\nmcp_tools:\n  x:\n    command: y\n---\nUse tabs.\n")
    put(tmp_path, ".cursor/rules/asked.mdc", "---\ndescription: On request\n---\nAsked.\n")
    put(tmp_path, ".bough/skills/words.md", "---\ntriggers: [words]\n---\nCount words.\n")
    put(tmp_path, ".bough/skills/pdf/SKILL.md", "---\nname: pdf\ndescription: P\n---\nP.\n")
    put(tmp_path, ".openhands/microagents/repo.md", "Always here.\n")

    registry = SkillRegistry.open(tmp_path, home=tmp_path / "home")

    assert "AGENTS.md" not in registry  # its name is refused like any other's
    assert {skill.name for skill in registry.always_active()} == {"repo"}
    assert [skill.name for skill in registry.list_catalogued()] == [".cursor/rules/asked.mdc", "pdf"]
    put(tmp_path, "AGENTS.md", "Use tabs.\n")
    again = SkillRegistry.open(tmp_path, home=tmp_path / "home")
    assert [skill.content for skill in again.always_active()] == ["Use tabs.", "Always here."]
    put(tmp_path, "AGENTS.md", "Use blanks.\n")
    assert again.get("AGENTS.md").content == "Use blanks."


def test_rules_from_the_top_down_to_the_workspace_always_hold_and_those_below_for_their_files(tmp_path: Path) -> None:
    (tmp_path / ".git").mkdir()
    deep = "app/web/build/a/b/c/d/e/CLAUDE.md"
    for name in ("CLAUDE.md", "app/CLAUDE.md", "app/web/AGENTS.md", deep, "other/GEMINI.md"):
        put(tmp_path, name, f"Rules of {name}.\n")
    skills, notes = read_rules(tmp_path / "app" / "web")
    assert notes == []
    assert {skill.name: skill.trigger for skill in skills} == {
        "CLAUDE.md": None,
        "app/CLAUDE.md": None,
        "app/web/AGENTS.md": None,
        "app/web/build/a/b/c/d/e/CLAUDE.md": PathTrigger(("app/web/build/a/b/c/d/e/**",)),
        "other/GEMINI.md": PathTrigger(("other/**",)),
    }
    registry = SkillRegistry.open(tmp_path / "app" / "web", home=tmp_path / "home")
    assert [each.name for each in find_always_active(registry).activations] == [
        "CLAUDE.md",
        "app/CLAUDE.md",
        "app/web/AGENTS.md",
    ]
