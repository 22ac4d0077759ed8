"""Writing the reports of a run into its folder."""

from __future__ import annotations

import json
from collections.abc import Sequence

from bough.evals.eval_set import write_whole
from bough.evals.run.folder import RunFolder
from bough.evals.run.result import EvalRun
from bough.events.store import EventStore
from bough.types import JsonObject

SCHEMA_VERSION = 1


async def write_reports(folder: RunFolder, run: EvalRun, notes: Sequence[JsonObject], store: EventStore | None) -> None:
    """Write `report.json` of a run; the other forms are made from it and from the logs."""
    data = {"schema_version": SCHEMA_VERSION, **run.as_dict(notes)}
    write_whole(folder.path / "report.json", json.dumps(data, indent=1, ensure_ascii=False) + "\n")
