"""`bough eval judge`: measures the agreement of a judge with human labels."""

from __future__ import annotations

import asyncio
import json as json_text
import sys
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from bough.cli import options
from bough.cli.commands.eval.options import Runs, runs_root, show_faults
from bough.cli.render import Report, renderer_for
from bough.cli.text import Block, Span, Table, line
from bough.errors import InvalidInput

if TYPE_CHECKING:
    from bough.evals.judge.agreement import JudgeAgreement
    from bough.evals.judge.label import Label
    from bough.evals.run.folder import RunFolder
    from bough.settings import Settings


def judge(
    file: Annotated[Path, typer.Argument(metavar="FILE", help="JSON lines: id, request, answer, property, label.")],
    model: Annotated[str, typer.Option("--judge", metavar="MODEL", help="Model to measure.")] = "",
    votes: Annotated[int, typer.Option("--votes", metavar="N", help="Judge calls per label; an odd number.")] = 1,
    base_url: options.BaseUrl = None,
    jobs: Annotated[int, typer.Option("--jobs", metavar="N", min=1, help="Number of labels to judge at once.")] = 4,
    threshold: Annotated[float, typer.Option("--threshold", metavar="K", help="Exit code 1 below this kappa.")] = 0.0,
    runs: Runs = None,
    home: options.Home = None,
    store: options.Store = None,
    json: options.Json = False,
) -> Report:
    """Measure a judge against human labels. Prints the confusion matrix, accuracy and Cohen's kappa."""
    from bough.evals.judge.label import read_labels
    from bough.evals.run.folder import RunFolder

    if not model:
        raise InvalidInput("no judge to measure", hint="pass --judge MODEL")
    settings = options.load_settings(home, store, base_url=base_url)
    labels, faults = read_labels(file)
    show_faults(renderer_for(json=json), faults.items)
    if not labels:
        raise InvalidInput(f"{file} has no labels", hint="one JSON object a line; fix the faults above")
    folder = RunFolder.new(runs_root(settings, runs))
    agreement = asyncio.run(_measure(model, votes, labels, folder, settings, jobs))
    passed = agreement.kappa >= threshold
    # Written after the measurement, because `bough eval list` shows every run with a record, even without a result.
    _write_run(folder, file, model, votes, threshold, agreement)
    return Report(
        command="eval judge",
        data={"run": folder.run, **agreement.as_dict(), "threshold": threshold, "passed": passed},
        blocks=_render_agreement(agreement),
        exit_code=0 if passed else 1,
    )


async def _measure(
    model: str, votes: int, labels: list[Label], folder: RunFolder, settings: Settings, jobs: int
) -> JudgeAgreement:
    from bough.evals.judge.agreement import measure_agreement
    from bough.evals.judge.judge import Judge
    from bough.evals.run.labels import judge_labels

    judge = Judge(model, votes, base_url=settings.base_url)
    return measure_agreement(await judge_labels(judge, labels, folder, settings, jobs=jobs))


def _write_run(
    folder: RunFolder, file: Path, model: str, votes: int, threshold: float, agreement: JudgeAgreement
) -> None:
    """Write `run.json` and `agreement.json`."""
    from bough.evals.judge.prompt import PROMPT_SHA256

    folder.write_record(
        {
            "schema_version": 1,
            "run": folder.run,
            "kind": "judge",
            "set": {"name": file.name, "path": str(file.absolute()), "sha256": "", "cases": 0},
            "cases": [],
            "model": model,
            "judge": {"model": model, "votes": votes, "prompt_sha256": PROMPT_SHA256},
            "threshold": threshold,
            "started": datetime.now(UTC).isoformat(),
            "argv": sys.argv[1:],
        }
    )
    (folder.path / "agreement.json").write_text(json_text.dumps(agreement.as_dict(), indent=1) + "\n", encoding="utf-8")


def _render_agreement(agreement: JudgeAgreement) -> list[Block]:
    rows: tuple[tuple[Span, ...], ...] = (
        (("person yes", ""), (str(agreement.yes_yes), ""), (str(agreement.yes_no), "")),
        (("person no", ""), (str(agreement.no_yes), ""), (str(agreement.no_no), "")),
    )
    blocks: list[Block] = [Table(head=("", "judge yes", "judge no"), rows=rows, flexible=(0,))]
    for label in agreement.differing:
        verdict = "yes" if label.judged else "no"
        blocks.append(line((label.id, "strong"), f"  judge {verdict}: {label.rationale}", hang=2))
    interval = f"({agreement.interval.low:.3f} to {agreement.interval.high:.3f})"
    failed = f", {agreement.failed} failed" if agreement.failed else ""
    blocks.append(
        line(
            (f"{agreement.kappa:.3f}", "strong"),
            f" kappa {interval}, accuracy {agreement.accuracy:.3f}",
            failed,
            hang=2,
        )
    )
    return blocks
