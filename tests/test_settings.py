"""Settings: who wins, what a project may say, and how mistakes are told."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from bough.errors import InvalidInput
from bough.server.settings import ServerSettings
from bough.settings import PROJECT_KEYS, Settings


def load(tmp_path: Path, *, env: dict[str, str] | None = None, **given: Any) -> Settings:
    (tmp_path / "cwd").mkdir(exist_ok=True)
    return Settings.load(given.pop("home", tmp_path / "home"), cwd=tmp_path / "cwd", env=env or {}, **given)


def write(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)


def test_defaults_lie_in_the_home_folder(tmp_path: Path) -> None:
    settings = load(tmp_path)
    assert settings.store == f"sqlite:///{tmp_path / 'home' / 'bough.db'}"
    assert (settings.executor, settings.policy, settings.model) == ("sandbox", None, None)


def test_arguments_win_over_environment_over_project_over_home(tmp_path: Path) -> None:
    write(tmp_path / "home" / "bough.yaml", "model: home\n")
    assert load(tmp_path).model == "home"
    write(tmp_path / "cwd" / "bough.yaml", "model: project\n")
    assert load(tmp_path).model == "project"
    assert load(tmp_path, env={"BOUGH_MODEL": "env"}).model == "env"
    assert load(tmp_path, env={"BOUGH_MODEL": "env"}, model="argument").model == "argument"


@pytest.mark.parametrize(
    "line",
    ["executor: unsafe", "policy: allow", "store: 'memory:'", "base_url: http://x", "skill_roots: [x]", "home: /x"],
)
def test_a_project_widens_nothing(tmp_path: Path, line: str) -> None:
    write(tmp_path / "cwd" / "bough.yaml", line)
    with pytest.raises(InvalidInput, match="may not set"):
        load(tmp_path)
    assert line.partition(":")[0] not in PROJECT_KEYS


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("modle: x", "unknown key `modle`"),
        ("- a\n- b", "must contain"),
        ("model: [", "not valid YAML"),
        ("[" * 5000, "not valid YAML"),
        ("model: 3", "must be text"),
        ("timeout_seconds: soon", "number of seconds"),
        ("timeout_seconds: -1", "number of seconds"),
        ("timeout_seconds: .inf", "number of seconds"),
        ("executor: bare", "is 'bare'"),
        ("skill_roots: 3", "list of paths"),
    ],
)
def test_mistakes_are_told(tmp_path: Path, text: str, said: str) -> None:
    write(tmp_path / "home" / "bough.yaml", text)
    with pytest.raises(InvalidInput, match=said):
        load(tmp_path)


def test_the_nearest_key_is_named(tmp_path: Path) -> None:
    write(tmp_path / "home" / "bough.yaml", "modle: x")
    with pytest.raises(InvalidInput) as error:
        load(tmp_path)
    assert "`model`" in error.value.hint


def test_skill_roots_from_the_environment_are_a_path_list(tmp_path: Path) -> None:
    settings = load(tmp_path, env={"BOUGH_SKILL_ROOTS": f"{tmp_path}/a:{tmp_path}/b", "BOUGH_TIMEOUT_SECONDS": "0"})
    assert settings.skill_roots == (tmp_path / "a", tmp_path / "b")
    assert settings.timeout_seconds == 0


def test_an_empty_file_is_no_mistake_and_bytes_are_one(tmp_path: Path) -> None:
    write(tmp_path / "home" / "bough.yaml", "")
    load(tmp_path)
    (tmp_path / "home" / "bough.yaml").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(InvalidInput, match="cannot be read"):
        load(tmp_path)


def test_the_section_of_the_server_is_left_to_the_server(tmp_path: Path) -> None:
    home = tmp_path / "home"
    home.mkdir()
    (home / "bough.yaml").write_text("model: offline\nserver:\n  limits: {runs: 3}\n")
    settings = Settings.load(home=home, env={}, cwd=tmp_path)
    assert settings.model == "offline"
    assert ServerSettings.load(settings, env={}).limits.runs == 3
    (tmp_path / "bough.yaml").write_text("server: {}\n")
    with pytest.raises(InvalidInput, match="server"):
        Settings.load(home=home, env={}, cwd=tmp_path)


def test_settings_can_be_a_key(tmp_path: Path) -> None:
    settings = Settings.load(tmp_path, env={}, prices={"my-model": {"input": 1, "output": 2}})
    assert {settings: "used"}[settings] == "used"


def test_switches_are_read_as_yaml_reads_them(tmp_path: Path) -> None:
    for word, expected in (("off", False), ("on", True), ("no", False), ("TRUE", True)):
        assert Settings.load(tmp_path, env={"BOUGH_COPY_BEFORE_UPGRADE": word}).copy_before_upgrade is expected


def test_what_is_kept_of_files_is_set_by_the_home_alone(tmp_path: Path) -> None:
    home, project = tmp_path / "home", tmp_path / "project"
    for folder, text in ((home, "keep_max_files: 5\nfiles: /kept\n"), (project, "keep_files: false\n")):
        folder.mkdir()
        (folder / "bough.yaml").write_text(text)
    settings = Settings.load(home=home, env={"BOUGH_KEEP_FILES": "off", "BOUGH_KEEP_FILE_BYTES": "9"}, cwd=tmp_path)
    assert (settings.keep_files, settings.keep_file_bytes, settings.keep_max_files) == (False, 9, 5)
    assert (settings.files, settings.keep_total_bytes) == (Path("/kept"), 1 << 30)
    with pytest.raises(InvalidInput, match="may not set `keep_files`"):
        Settings.load(home=home, env={}, cwd=project)
    for value in ("-1", "many", True, 1.5):
        with pytest.raises(InvalidInput, match="whole number"):
            Settings.load(tmp_path, env={}, keep_max_files=value)
