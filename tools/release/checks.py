"""Checks of a wheel, its metadata and its dependencies. Each returns what is wrong, one sentence a fault."""

from __future__ import annotations

import re
import tomllib
import zipfile
from collections.abc import Iterator, Sequence
from email.parser import BytesParser
from importlib.metadata import Distribution, distributions
from pathlib import Path

from packaging.metadata import Metadata

MAX_WHEEL_BYTES = 5 << 19
ALLOWED_LICENSES = re.compile(
    r"MIT|BSD|Apache|ISC|Python Software Foundation|PSF|MPL|Mozilla Public License|Unlicense|0BSD|CC0|Zlib"
    r"|linking exception",
    re.IGNORECASE,
)
"""Licences of what a base install brings along. None reaches a program that imports bough: pygit2 is under GPL 2 with
an exception for linking."""

_REQUIRED_FILES = ("bough/py.typed", "bough/cli/main.py", "bough/examples/skills/csv-profile/SKILL.md")
_FORBIDDEN = re.compile(r"(^|/)(__pycache__|\.venv|\.git)(/|$)|\.(pyc|db)$|^(bough/)?tests?/")


def check_versions(root: Path) -> Iterator[str]:
    """Check that the version is the same in pyproject.toml, in the package and in the changelog."""
    version: str = tomllib.loads((root / "pyproject.toml").read_text("utf-8"))["project"]["version"]
    package = re.findall(r'^__version__ = "(.*)"$', (root / "src/bough/__init__.py").read_text("utf-8"), re.MULTILINE)
    headings = re.findall(r"^## (.*)$", (root / "CHANGELOG.md").read_text("utf-8"), re.MULTILINE)
    if package != [version]:
        yield f"bough.__version__ is {package}, pyproject.toml has {version}"
    if headings[:1] != [version]:
        yield f"the first section of CHANGELOG.md is {headings[:1]}, pyproject.toml has {version}"


def check_wheel(wheel: Path, machine_paths: Sequence[str]) -> Iterator[str]:
    """Check the size and the contents of a wheel.

    Args:
        machine_paths: Paths of this machine, which no file may contain.
    """
    size = wheel.stat().st_size
    if size > MAX_WHEEL_BYTES:
        yield f"{wheel.name} has {size:,} bytes, more than {MAX_WHEEL_BYTES:,}"
    with zipfile.ZipFile(wheel) as archive:
        names = archive.namelist()
        for name in names:
            if not re.match(r"bough(-[\w.]+\.dist-info)?/", name) or _FORBIDDEN.search(name):
                yield f"{wheel.name} contains {name}"
            content = archive.read(name)
            for path in machine_paths:
                if path.encode() in content:
                    yield f"{name} in {wheel.name} contains the path {path}"
    for required in _REQUIRED_FILES:
        if required not in names:
            yield f"{wheel.name} lacks {required}"
    for kind in (".sql", "licenses/LICENSE"):
        if not any(name.endswith(kind) for name in names):
            yield f"{wheel.name} has no {kind}"


def read_metadata(wheel: Path) -> bytes:
    """Return the metadata of a wheel."""
    with zipfile.ZipFile(wheel) as archive:
        (name,) = (name for name in archive.namelist() if name.endswith(".dist-info/METADATA"))
        return archive.read(name)


def check_metadata(wheel: Path, root: Path) -> Iterator[str]:
    """Check that the metadata is valid, and has what pyproject.toml says."""
    project = tomllib.loads((root / "pyproject.toml").read_text("utf-8"))["project"]
    try:
        metadata = Metadata.from_email(read_metadata(wheel), validate=True)
    except ExceptionGroup as group:
        yield from (f"the metadata is not valid: {error}" for error in group.exceptions)
        return
    if (metadata.name, str(metadata.version)) != (project["name"], project["version"]):
        yield f"the metadata is that of {metadata.name} {metadata.version}"
    if sorted(metadata.provides_extra or ()) != sorted(project["optional-dependencies"]):
        yield "the extras are not those of pyproject.toml"
    if metadata.description_content_type != "text/markdown" or not metadata.description:
        yield "the README is not the description"
    if metadata.license_expression != project["license"]:
        yield f"the licence is {metadata.license_expression}"


def check_classifiers(wheel: Path, tried: Sequence[str]) -> Iterator[str]:
    """Check that the classifiers name no Python that was not tried."""
    classifiers = BytesParser().parsebytes(read_metadata(wheel)).get_all("Classifier", [])
    named = {match[1] for text in classifiers if (match := re.search(r"Python :: (3\.\d+)$", text))}
    for version in sorted(named - set(tried)):
        yield f"a classifier names Python {version}, which was not tried"


def check_licenses(site_packages: Path) -> Iterator[str]:
    """Check the licence of each distribution in an environment."""
    for distribution in sorted(distributions(path=[str(site_packages)]), key=lambda found: found.name.lower()):
        text = read_license(distribution)
        if not ALLOWED_LICENSES.search(text):
            yield f"{distribution.name} {distribution.version} has the licence {text or 'unknown'}"


def read_license(distribution: Distribution) -> str:
    """Return what a distribution says about its licence: the expression, else classifiers and the first line."""
    fields = {
        name: distribution.metadata.get_all(name) or [] for name in ("License-Expression", "Classifier", "License")
    }
    if fields["License-Expression"]:
        return str(fields["License-Expression"][0])
    classifiers = [text for text in fields["Classifier"] if text.startswith("License ::")]
    return "; ".join([*classifiers, *(line for text in fields["License"] for line in text.splitlines()[:1])])
