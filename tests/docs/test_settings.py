"""`docs/reference/settings.md` has every setting and variable, `docs/how-to/deploy.md` every setting of the server."""

from __future__ import annotations

import re
from dataclasses import fields
from pathlib import Path

from bough.server.settings import ServerSettings, TenantLimits
from bough.settings import PROJECT_KEYS, Settings

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "reference" / "settings.md").read_text("utf-8")
TABLE = PAGE.partition("## All settings\n")[2].partition("\n## ")[0]
ROWS = {
    cells[0].strip("`"): cells
    for line in TABLE.splitlines()
    if line.startswith("| `") and (cells := [cell.strip() for cell in line.strip("|").split("|")])
}


def test_every_setting_has_a_row_with_its_variable_and_its_default() -> None:
    assert set(ROWS) == {field.name for field in fields(Settings)}
    for field in fields(Settings):
        _, _, variable, default, meaning = ROWS[field.name]
        assert variable == ("" if field.name == "prices" else f"`BOUGH_{field.name.upper()}`")
        assert meaning
        if isinstance(field.default, bool | float | str):
            assert str(field.default).lower().removesuffix(".0") in default, field.name
        else:
            assert default, field.name


def test_the_page_says_which_settings_a_project_may_set() -> None:
    (sentence,) = re.findall(r"in the working folder, which may set (.*) only", PAGE)
    assert set(re.findall(r"`(\w+)`", sentence)) == PROJECT_KEYS


def test_every_option_of_a_setting_is_one_of_the_command_line() -> None:
    source = (ROOT / "src" / "bough" / "cli" / "options.py").read_text("utf-8")
    for cells in ROWS.values():
        for option in re.findall(r"`(--[\w-]+)`", cells[1]):
            assert f'"{option}"' in source, option


def test_every_variable_that_the_code_reads_is_on_the_page() -> None:
    read = set[str]()
    for path in (ROOT / "src" / "bough").rglob("*.py"):
        if "testing" not in path.parts:
            read |= set(re.findall(r"\"(BOUGH_[A-Z_]+)\"", path.read_text("utf-8")))
    not_read_from_users = {"BOUGH_PROJECT_DIR", "BOUGH_SERVE"}  # of hooks, and of a sandbox
    assert {"BOUGH_DEBUG", "BOUGH_SECRET_KEY"} <= read
    assert read - set(re.findall(r"BOUGH_[A-Z_]+", PAGE)) == not_read_from_users


def test_every_setting_of_the_server_is_in_the_page_about_deploying() -> None:
    page = (ROOT / "docs" / "how-to" / "deploy.md").read_text("utf-8")
    table = page.partition("## Settings\n")[2].partition("\n## ")[0]
    named = set(re.findall(r"`(\w+)`", table))
    assert set(ServerSettings.model_fields) | set(TenantLimits.model_fields) <= named
