"""The bill of materials of an environment (CycloneDX 1.6), and known vulnerabilities of what is in it."""

from __future__ import annotations

import base64
import hashlib
import json
import zipfile
from collections.abc import Iterator, Mapping
from importlib.metadata import Distribution, distributions
from pathlib import Path
from typing import Any

from packaging.utils import canonicalize_name

from tools.release.checks import read_license


def write_bill(site_packages: Path, version: str) -> dict[str, Any]:
    """Return the bill of materials of an environment with bough: a component for each distribution, by name.

    It holds no time and no random number, so that two builds have the same one.
    """
    components = [
        {
            "type": "library",
            "bom-ref": f"pkg:pypi/{canonicalize_name(distribution.name)}@{distribution.version}",
            "name": distribution.name,
            "version": distribution.version,
            "purl": f"pkg:pypi/{canonicalize_name(distribution.name)}@{distribution.version}",
            "licenses": [{"license": {"name": read_license(distribution) or "unknown"}}],
            "properties": [{"name": "bough:record:sha256", "value": _digest_record(distribution)}],
        }
        for distribution in _list_distributions(site_packages)
        if canonicalize_name(distribution.name) != "bough"
    ]
    return {
        "bomFormat": "CycloneDX",
        "specVersion": "1.6",
        "version": 1,
        "metadata": {
            "component": {"type": "library", "bom-ref": "bough", "name": "bough", "version": version},
        },
        "components": components,
        "dependencies": [{"ref": "bough", "dependsOn": [component["bom-ref"] for component in components]}],
    }


def check_files(site_packages: Path) -> Iterator[str]:
    """Check the digests of all installed files against the RECORD of their distribution."""
    for distribution in _list_distributions(site_packages):
        for file in distribution.files or ():
            if file.hash is None or file.hash.mode != "sha256":
                continue
            path = Path(str(distribution.locate_file(file)))
            digest = base64.urlsafe_b64encode(hashlib.sha256(path.read_bytes()).digest()).rstrip(b"=").decode()
            if digest != file.hash.value:
                yield f"{distribution.name}: {file} is not the file that was published"


def check_advisories(bill: Mapping[str, Any], database: Path) -> Iterator[str]:
    """Check each component against a database of advisories: a zip file of OSV records, as osv.dev publishes for PyPI.

    Versions that a record lists count; ranges without a list do not. O(records).
    """
    versions = {str(canonicalize_name(item["name"])): str(item["version"]) for item in bill["components"]}
    with zipfile.ZipFile(database) as archive:
        for name in archive.namelist():
            record: dict[str, Any] = json.loads(archive.read(name))
            for affected in () if "withdrawn" in record else record.get("affected", ()):
                package = str(canonicalize_name(affected["package"]["name"]))
                if versions.get(package) in affected.get("versions", ()):
                    yield f"{package} {versions[package]}: {record['id']}: {record.get('summary', '')}"


def _list_distributions(site_packages: Path) -> list[Distribution]:
    return sorted(distributions(path=[str(site_packages)]), key=lambda each: str(canonicalize_name(each.name)))


def _digest_record(distribution: Distribution) -> str:
    return hashlib.sha256((distribution.read_text("RECORD") or "").encode()).hexdigest()
