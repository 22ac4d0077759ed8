"""The checks of a release find what is wrong, and pass for this repository."""

from __future__ import annotations

import base64
import hashlib
import json
import subprocess
import sys
import zipfile
from collections.abc import Mapping
from pathlib import Path

import pytest
from tools.release import checks, materials

ROOT = Path(__file__).parents[1]
METADATA = "Metadata-Version: 2.4\nName: bough\nVersion: 0.4.0\nClassifier: Programming Language :: Python :: 3.12\n"
COMPLETE = {
    "bough/py.typed": "",
    "bough/cli/main.py": "",
    "bough/examples/skills/csv-profile/SKILL.md": "",
    "bough/events/queries.sql": "",
    "bough-0.4.0.dist-info/licenses/LICENSE": "",
    "bough-0.4.0.dist-info/METADATA": METADATA,
}


def write_wheel(folder: Path, files: Mapping[str, str]) -> Path:
    """Write a wheel with these files."""
    wheel = folder / "bough-0.4.0-py3-none-any.whl"
    with zipfile.ZipFile(wheel, "w") as archive:
        for name, text in files.items():
            archive.writestr(name, text)
    return wheel


@pytest.mark.parametrize(
    ("files", "fault"),
    [
        ({}, ""),
        ({"tests/test_x.py": ""}, "contains tests/test_x.py"),
        ({"bough/cli/__pycache__/main.pyc": ""}, "contains bough/cli/__pycache__/main.pyc"),
        ({"bough/cli/main.py": "root = '/somewhere/checkout/src'"}, "contains the path /somewhere/checkout/"),
        ({"bough/py.typed": None}, "lacks bough/py.typed"),
        ({"bough/events/queries.sql": None}, "has no .sql"),
        ({"bough/big.txt": "x" * (checks.MAX_WHEEL_BYTES + 1)}, "bytes, more than"),
    ],
)
def test_a_fault_in_the_contents_is_found(tmp_path: Path, files: Mapping[str, str | None], fault: str) -> None:
    merged = {name: text for name, text in (COMPLETE | dict(files)).items() if text is not None}
    faults = list(checks.check_wheel(write_wheel(tmp_path, merged), ["/somewhere/checkout/"]))
    assert len(faults) == (1 if fault else 0)
    assert fault in "".join(faults)


def test_a_classifier_may_only_name_a_python_that_was_tried(tmp_path: Path) -> None:
    wheel = write_wheel(tmp_path, COMPLETE)
    assert list(checks.check_classifiers(wheel, ["3.11", "3.12"])) == []
    assert list(checks.check_classifiers(wheel, ["3.11"])) == ["a classifier names Python 3.12, which was not tried"]


def test_metadata_that_is_not_that_of_the_project_is_found(tmp_path: Path) -> None:
    faults = list(checks.check_metadata(write_wheel(tmp_path, COMPLETE), ROOT))
    assert "the extras are not those of pyproject.toml" in faults
    broken = COMPLETE | {"bough-0.4.0.dist-info/METADATA": METADATA.replace("0.4.0", "not a version")}
    assert "not valid" in next(checks.check_metadata(write_wheel(tmp_path, broken), ROOT))


def test_versions_that_differ_are_found(tmp_path: Path) -> None:
    assert list(checks.check_versions(ROOT)) == []
    (tmp_path / "src" / "bough").mkdir(parents=True)
    (tmp_path / "pyproject.toml").write_text('[project]\nversion = "1.0.0"\n')
    (tmp_path / "src" / "bough" / "__init__.py").write_text('__version__ = "0.9.0"\n')
    (tmp_path / "CHANGELOG.md").write_text("# Changelog\n\n## Unreleased\n")
    assert len(list(checks.check_versions(tmp_path))) == 2


def test_a_licence_that_is_not_allowed_or_unknown_is_found(tmp_path: Path) -> None:
    for name, line in (("good", "License-Expression: MIT"), ("bad", "License-Expression: GPL-3.0-only"), ("mute", "")):
        folder = tmp_path / f"{name}-1.0.dist-info"
        folder.mkdir()
        (folder / "METADATA").write_text(f"Metadata-Version: 2.4\nName: {name}\nVersion: 1.0\n{line}\n")
    faults = list(checks.check_licenses(tmp_path))
    assert faults == ["bad 1.0 has the licence GPL-3.0-only", "mute 1.0 has the licence unknown"]


def write_distribution(folder: Path, name: str, text: str = "x = 1\n") -> None:
    """Write an installed distribution of one module whose RECORD has the digest of `x = 1`."""
    digest = base64.urlsafe_b64encode(hashlib.sha256(b"x = 1\n").digest()).rstrip(b"=").decode()
    info = folder / f"{name}-1.0.dist-info"
    info.mkdir()
    (folder / f"{name}.py").write_text(text)
    (info / "METADATA").write_text(f"Metadata-Version: 2.4\nName: {name}\nVersion: 1.0\nLicense-Expression: MIT\n")
    (info / "RECORD").write_text(f"{name}.py,sha256={digest},6\n{info.name}/RECORD,,\n")


def test_the_bill_of_materials_names_what_is_installed(tmp_path: Path) -> None:
    for name in ("zeta", "Al_pha", "bough"):
        write_distribution(tmp_path, name)
    bill = materials.write_bill(tmp_path, "0.3.0")
    assert (bill["bomFormat"], bill["specVersion"]) == ("CycloneDX", "1.6")
    assert [item["purl"] for item in bill["components"]] == ["pkg:pypi/al-pha@1.0", "pkg:pypi/zeta@1.0"]
    assert bill["components"][0]["licenses"] == [{"license": {"name": "MIT"}}]
    assert bill["dependencies"] == [{"ref": "bough", "dependsOn": ["pkg:pypi/al-pha@1.0", "pkg:pypi/zeta@1.0"]}]
    assert bill == materials.write_bill(tmp_path, "0.3.0")


def test_a_file_that_was_changed_after_the_installation_is_found(tmp_path: Path) -> None:
    write_distribution(tmp_path, "good")
    write_distribution(tmp_path, "bad", "x = 2\n")
    assert list(materials.check_files(tmp_path)) == ["bad: bad.py is not the file that was published"]


def test_an_advisory_about_an_installed_version_is_found(tmp_path: Path) -> None:
    write_distribution(tmp_path, "al_pha")
    database = tmp_path / "advisories.zip"
    affected = [{"package": {"name": "Al.Pha"}, "versions": ["0.9", "1.0"]}]
    records = [
        {"id": "A-1", "summary": "it leaks", "affected": affected},
        {"id": "A-2", "affected": affected, "withdrawn": "2026-01-01T00:00:00Z"},
        {"id": "A-3", "affected": [{"package": {"name": "al-pha"}, "versions": ["2.0"]}]},
    ]
    with zipfile.ZipFile(database, "w") as archive:
        for record in records:
            archive.writestr(f"{record['id']}.json", json.dumps(record))
    bill = materials.write_bill(tmp_path, "0.3.0")
    assert list(materials.check_advisories(bill, database)) == ["al-pha 1.0: A-1: it leaks"]


@pytest.mark.slow
@pytest.mark.timeout(400)
@pytest.mark.needs("bubblewrap")
def test_this_repository_passes_with_the_python_of_the_tests() -> None:
    version = f"{sys.version_info.major}.{sys.version_info.minor}"
    command = [sys.executable, "-m", "tools.release", "--python", version]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == (0 if version == "3.11" else 1), done.stdout + done.stderr
    lines = done.stdout.splitlines()
    assert [line.split()[1].strip(":") for line in lines[:5]] == ["versions", "build", "contents", "metadata", "Python"]
    assert "ok         older stores" in lines
