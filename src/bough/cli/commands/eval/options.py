"""Options and output that the commands of `bough eval` share."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from bough.cli import options
from bough.cli.render import Renderer
from bough.cli.text import Block, Line, Span, Style, Table, line, one_line
from bough.errors import InvalidInput
from bough.settings import Settings
from bough.types import JsonObject

if TYPE_CHECKING:
    from bough.evals.document import Fault
    from bough.evals.loop import EvalOptions
    from bough.evals.run.plan import PlannedAttempt
    from bough.evals.run.result import EvalRun
    from bough.evals.run.summary import AttemptResult

Runs = Annotated[
    Path | None, typer.Option("--runs", metavar="DIR", help="Folder of eval runs. [default: <home>/evals]")
]
Run = Annotated[str, typer.Argument(metavar="RUN", help="Run id, or a unique part of it; - for the latest.")]

_MARKS: dict[str, tuple[str, Style]] = {
    "passed": ("pass ", "good"),
    "failed": ("fail ", "bad"),
    "error": ("error", "bad"),
    "skipped": ("skip ", "dim"),
}


@dataclass(frozen=True, kw_only=True)
class EvalRunOptions:
    """Options of a command that runs cases."""

    jobs: Annotated[int, typer.Option("--jobs", metavar="N", help="Number of cases to run at once.")] = 4
    repeat: Annotated[int, typer.Option("--repeat", metavar="N", help="Attempts per case.")] = 1
    seed: Annotated[
        int, typer.Option("--seed", metavar="N", help="Seed for the model; each attempt adds its number.")
    ] = 0
    judge: Annotated[
        str | None, typer.Option("--judge", metavar="MODEL|none", help="Model that judges rubrics; none skips them.")
    ] = None
    votes: Annotated[int, typer.Option("--votes", metavar="N", help="Judge calls per judgement; an odd number.")] = 1
    metric: Annotated[
        list[str] | None,
        typer.Option("--metric", metavar="NAME[=T]", help="Add a metric, or set its threshold; repeatable."),
    ] = None
    filter: Annotated[str | None, typer.Option("--filter", metavar="GLOB", help="Only cases whose id matches.")] = None
    limit: Annotated[int | None, typer.Option("--limit", metavar="N", min=1, help="Only the first N cases.")] = None
    threshold: Annotated[float, typer.Option("--threshold", metavar="T", help="Exit code 1 below this pass rate.")] = (
        1.0
    )
    timeout: Annotated[
        float | None,
        typer.Option(
            "--timeout",
            metavar="SECONDS",
            min=0,
            callback=options.require_number,
            help="Time limit per turn. Default: 600.",
        ),
    ] = None
    max_cost_usd: options.MaxCost = None
    secret: options.Secret = None
    resume: Annotated[str | None, typer.Option("--resume", metavar="RUN", help="Resume this run.")] = None
    retry_errors: Annotated[
        bool, typer.Option("--retry-errors", help="With --resume: also retry cases that ended in an error.")
    ] = False
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Check the set and show the plan; call no model.")] = False
    record: Annotated[
        Path | None, typer.Option("--record", metavar="DIR", help="Record the responses of agent and judge in DIR.")
    ] = None
    recorded: Annotated[
        Path | None, typer.Option("--recorded", metavar="DIR", help="Use the responses recorded in DIR, not a model.")
    ] = None
    keep: Annotated[bool, typer.Option("--keep", help="Keep the workspaces of cases that passed.")] = False

    def to_options(self, **overrides: Any) -> EvalOptions:
        """Return the options of `evaluate`.

        Raises:
            InvalidInput: A metric or a secret is invalid.
        """
        from bough.cli.rule_options import secrets_named
        from bough.evals.loop import EvalOptions
        from bough.guard import Limits

        fields: dict[str, object] = {
            "jobs": self.jobs,
            "repeat": self.repeat,
            "seed": self.seed,
            "judge": self.judge,
            "votes": self.votes,
            "metrics": parse_metrics(self.metric or ()),
            "filter": self.filter,
            "limit": self.limit,
            "threshold": self.threshold,
            "limits": Limits(steps=100, wall_seconds=600.0 if self.timeout is None else self.timeout),
            "max_cost_usd": self.max_cost_usd,
            "secrets": secrets_named(self.secret) if self.secret else None,
            "retry_errors": self.retry_errors,
            "keep": self.keep,
            "record_to": self.record,
            "recorded": self.recorded,
            "argv": sys.argv[1:],
            **overrides,
        }
        return EvalOptions(**fields)  # pyright: ignore[reportArgumentType]


NO_OPTIONS = EvalRunOptions()


def parse_metrics(arguments: Sequence[str]) -> dict[str, float | None]:
    """Return thresholds by metric; a metric without a threshold gets its default.

    Raises:
        InvalidInput: A metric is unknown, or a threshold is not a number.
    """
    from bough.evals.score import METRICS, THRESHOLDS

    thresholds: dict[str, float | None] = {}
    for argument in arguments:
        name, separator, text = argument.partition("=")
        if name not in METRICS:
            raise InvalidInput(f"invalid metric {name!r}", hint=f"choose one of: {', '.join(sorted(METRICS))}")
        try:
            threshold = float(text) if separator else THRESHOLDS.get(name)
        except ValueError as error:
            raise InvalidInput(f"--metric {argument!r} has no number", hint="for example --metric order=0.5") from error
        if threshold is not None and not threshold >= 0:  # `not … >= 0` also refuses nan
            raise InvalidInput(f"--metric {argument!r} is not a threshold", hint="give a number, 0 or more")
        thresholds[name] = threshold
    return thresholds


def runs_root(settings: Settings, runs: Path | None) -> Path:
    """Return the folder of eval runs."""
    return (settings.home / "evals" if runs is None else runs).absolute()


def show_faults(renderer: Renderer, faults: Sequence[Fault]) -> None:
    """Show the errors and warnings of a set, but not its notes."""
    for fault in faults:
        if fault.severity != "note":
            style: Style = "bad" if fault.severity == "error" else "warn"
            renderer.note(line((f"{fault.severity} ", style), f"{fault.code}: {fault}", hang=6))


def progress_line(planned: PlannedAttempt, result: AttemptResult) -> Line:
    """Return the progress line of a finished attempt."""
    reason_text = f"  {one_line(result.reason, 160)}" if result.reason else ""
    return line(_MARKS[result.status], f" {planned.name}", (f"  {result.seconds:.1f} s", "dim"), reason_text, hang=6)


def run_blocks(run: EvalRun) -> list[Block]:
    """Return the output of a finished run: the metrics as a table, then the summary."""
    blocks: list[Block] = []
    if run.metrics:
        rows = tuple(_metric_row(metric.as_dict() | {"name": metric.name}) for metric in run.metrics)
        blocks.append(
            Table(head=("metric", "mean", "scored", "passed"), rows=rows, flexible=(0,), right=frozenset({1}))
        )
    blocks.append(head_line(run.summary.as_dict(), threshold=run.threshold, passed=run.passed))
    blocks.append(line(("run ", "dim"), (run.run, "id")))
    blocks.append(line(("report ", "dim"), str(run.folder / "report.html")))
    return blocks


def side_lines(sides: JsonObject) -> list[Block]:
    """Return a table of the compared sides and their difference; nothing if no sides are compared."""
    if not sides:
        return []
    rows = [_side_row(side, figures) for side, figures in sides.items() if side != "delta"]
    delta = sides["delta"]
    difference: tuple[Span, ...] = (
        ("difference", "strong"),
        (f"{delta['pass_rate']:+.3f}", "strong"),
        (f"{delta['time_seconds']:+.2f}", ""),
        (f"{delta['tokens']:+.0f}", ""),
    )
    return [Table(head=("", "pass rate", "seconds", "tokens"), rows=(*rows, difference), flexible=(0,))]


def _side_row(side: str, figures: JsonObject) -> tuple[Span, ...]:
    cells = [f"{figures[name]['mean']:.3f} ± {figures[name]['stddev']:.3f}" for name in ("pass_rate", "time_seconds")]
    return ((side, ""), *((cell, "") for cell in cells), (f"{figures['tokens']['mean']:.0f}", ""))


def head_line(summary: JsonObject, *, threshold: float, passed: bool) -> Line:
    """Return the summary line: pass rate with its interval, counts, time and cost."""
    cost = summary["cost_usd"]
    counts = f"{summary['passed']} passed, {summary['failed']} failed, {summary['errors']} errors"
    if summary["skipped"]:
        counts += f", {summary['skipped']} skipped"
    if summary["not_judged"]:
        counts += f", not judged: {summary['not_judged']} rubrics"
    return line(
        (f"{summary['pass_rate']:.3f}", "good" if passed else "bad"),
        f" pass rate ({summary['low']:.3f} to {summary['high']:.3f}), threshold {threshold:g}: {counts}",
        (f"  {summary['seconds']:.1f} s  {'price unknown' if cost is None else f'{cost:.4f} USD'}", "dim"),
        hang=2,
    )


def _metric_row(metric: JsonObject) -> tuple[Span, ...]:
    mean, passed = metric["mean"], metric["passed"]
    bound = "" if metric["threshold"] is None else f" (bound {metric['threshold']:g})"
    return (
        (metric["name"], ""),
        ("-" if mean is None else f"{mean:.3f}", ""),
        (f"{metric['n']} of {metric['of']}", "dim"),
        ("" if passed is None else f"{passed} of {metric['of']}{bound}", ""),
    )
