"""The documented layout: `iteration-N/eval-ID/with_skill|without_skill/{outputs, timing.json, grading.json}`.

Source: Agent Skills documentation, evaluating skills.
"""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path
from uuid import UUID

from bough.errors import StoreError
from bough.evals.run.folder import RunFolder, plain_name
from bough.evals.run.read import RunReader
from bough.evals.run.summary import AttemptResult
from bough.evals.trace import Trace
from bough.types import JsonObject

MAX_OUTPUT_BYTES = 32 << 20
_ITERATION = re.compile(r"iteration-(\d+)\Z")


def next_iteration(results: Path) -> Path:
    """Create the folder of the next iteration and return it.

    Raises:
        StoreError: The folder cannot be created.
    """
    try:
        results.mkdir(parents=True, exist_ok=True)
        numbers = [int(match[1]) for path in results.iterdir() if (match := _ITERATION.match(path.name))]
        folder = results / f"iteration-{max(numbers, default=0) + 1}"
        folder.mkdir()
    except OSError as error:
        raise StoreError(f"cannot write {results}: {error.strerror}", hint="--results DIR names another") from error
    return folder


async def write_iteration(folder: Path, run: RunFolder, results: Sequence[AttemptResult], repeat: int) -> None:
    """Write the files of every attempt. Reads each log once.

    Raises:
        StoreError: A file cannot be written.
    """
    async with RunReader.open(run) as reader:
        for result in results:
            place = folder / f"eval-{plain_name(result.case)}" / result.side
            place = place / f"run-{result.attempt}" if repeat > 1 else place
            answer = ""
            if result.conversation is not None:
                answer = Trace.of(await reader.events(UUID(result.conversation))).answer
            try:
                _write_attempt(place, result, answer, run.workspace(result.case, result.attempt, result.side))
            except OSError as error:
                raise StoreError(f"cannot write {place}: {error.strerror}", hint="check the free space") from error


def _write_attempt(place: Path, result: AttemptResult, answer: str, workspace: Path) -> None:
    outputs = place / "outputs"
    outputs.mkdir(parents=True)
    total = 0
    for name in result.data.get("outputs") or ():
        source = workspace / name
        if source.is_symlink() or not source.is_file():
            continue
        total += source.stat().st_size
        if total > MAX_OUTPUT_BYTES:
            break
        (outputs / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(source, outputs / name)
    (outputs / "answer.md").write_text(answer + "\n", encoding="utf-8")
    write_json(place / "timing.json", _timing(result))
    write_json(place / "grading.json", grade(result))


def _timing(result: AttemptResult) -> JsonObject:
    return {
        "total_tokens": result.tokens,
        "duration_ms": round(result.seconds * 1000),
        "cost_usd": result.cost_usd,
        "steps": result.steps,
        "conversation": result.conversation,
    }


def grade(result: AttemptResult) -> JsonObject:
    """Return the content of `grading.json`; without assertions the pass rate is null."""
    assertions: list[JsonObject] = result.data.get("assertions") or []
    passed = sum(bool(assertion["passed"]) for assertion in assertions)
    return {
        "assertion_results": assertions,
        "summary": {
            "passed": passed,
            "failed": len(assertions) - passed,
            "total": len(assertions),
            "pass_rate": result.assertion_rate,
        },
    }


def write_json(path: Path, data: Mapping[str, object]) -> None:
    """Write a JSON file."""
    path.write_text(json.dumps(data, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
