"""Formatting diagnostics as SARIF, for code scanning tools."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from bough.skills.model import Diagnostic


def as_sarif(diagnostics: Iterable[Diagnostic], *, version: str = "0") -> dict[str, Any]:
    """Return the diagnostics as a SARIF 2.1.0 log.

    Source: OASIS, Static Analysis Results Interchange Format 2.1.0.
    """
    listed = list(diagnostics)
    driver = {
        "name": "bough skills check",
        "version": version,
        "rules": [{"id": code} for code in sorted({diagnostic.code for diagnostic in listed})],
    }
    return {
        "$schema": "https://json.schemastore.org/sarif-2.1.0.json",
        "version": "2.1.0",
        "runs": [{"tool": {"driver": driver}, "results": [_sarif_result(diagnostic) for diagnostic in listed]}],
    }


def _sarif_result(finding: Diagnostic) -> Mapping[str, Any]:
    level = {"error": "error", "warning": "warning", "info": "note"}[finding.severity]
    place: dict[str, Any] = {"artifactLocation": {"uri": Path(finding.path).as_posix()}}
    if finding.line:
        place["region"] = {"startLine": finding.line}
    text = f"{finding.message}. {finding.fix}" if finding.fix else finding.message
    return {
        "ruleId": finding.code,
        "level": level,
        "message": {"text": text},
        "locations": [{"physicalLocation": place}],
    }
