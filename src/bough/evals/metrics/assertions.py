"""Assertions of a case: code decides a closed list of forms; any other text is a statement for the judge.

Forms: `contains: TEXT`, `matches: RE`, `file: GLOB`, `tool: NAME`, `check: SCRIPT ARGS`. The prefix `not ` negates.

Source: Agent Skills documentation, evaluating skills: "use a script for what can be checked mechanically".
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from fnmatch import fnmatchcase
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, TypeAlias, cast

from bough.errors import BoughError
from bough.evals.case import Rubric
from bough.evals.metrics.deterministic import fold_text
from bough.evals.score import AssertionResult, Score, at_least
from bough.evals.trace import Trace, canonical_tool
from bough.execution.base import CodeExecutionInput, File, Mount

if TYPE_CHECKING:
    from bough.evals.context import AttemptHost, TraceContext


CheckForm: TypeAlias = Literal["contains", "matches", "file", "tool", "check", "judge"]

FORMS = ("contains", "matches", "file", "tool", "check")
_FORM = re.compile(rf"(not )?({'|'.join(FORMS)}): *(\S.*)", re.DOTALL)
_POSSIBLE_FORM = re.compile(r"(?:not\s+)?([A-Za-z]+)\s*:\s")


@dataclass(frozen=True, slots=True)
class AssertionCheck:
    """A parsed assertion.

    Attributes:
        form: How the assertion is decided; `judge` for a free statement.
        argument: The text after the form; the whole text for the judge.
        negated: Whether the assertion starts with `not`.
    """

    text: str
    form: CheckForm
    argument: str
    negated: bool = False


def parse_check(text: str) -> AssertionCheck:
    """Return a parsed assertion; a text without a known form is for the judge."""
    match = _FORM.fullmatch(text.strip())
    if match is None:
        return AssertionCheck(text, "judge", text)
    return AssertionCheck(text, cast("CheckForm", match[2]), match[3].strip(), negated=bool(match[1]))


def mechanical_checks(texts: Sequence[str]) -> tuple[str, ...]:
    """Return the assertions that code can decide."""
    return tuple(text for text in texts if parse_check(text).form != "judge")


def misspelt_form(text: str) -> str | None:
    """Return the form that a free statement seems to misspell; None if it is similar to none."""
    match = _POSSIBLE_FORM.match(text.strip() + " ")
    if match is None or parse_check(text).form != "judge":
        return None
    similar_forms = get_close_matches(match[1].lower(), FORMS, 1, cutoff=0.75)
    return similar_forms[0] if similar_forms else None


_MAX_EVIDENCE = 500
_MAX_OUTPUT_BYTES = 32 << 20
_CHECK_SECONDS = 60.0


async def score_assertions(ctx: TraceContext, texts: Sequence[str] | None, threshold: float | None) -> Score:
    """Return the share of assertions that passed, and store their results in the context.

    Args:
        texts: The assertions; None for those of the case, without free statements if the run has no judge.
    """
    not_judged = 0
    if texts is None:
        texts = ctx.case.checks if ctx.host.judge is not None else mechanical_checks(ctx.case.checks)
        not_judged = len(ctx.case.checks) - len(texts)
    results = await decide_assertions(ctx, texts)
    ctx.assertions = results
    if not results:
        reason = f"{not_judged} not judged" if not_judged else "no assertions"
        return Score("assertions", None, None, reason, threshold)
    failed = [result for result in results if not result.passed]
    reason = f"{failed[0].text[:120]}: {failed[0].evidence[:200]}" if failed else f"all {len(results)} passed"
    reason += f"; {not_judged} not judged" if not_judged else ""
    score = at_least("assertions", 1 - len(failed) / len(results), threshold, reason)
    if any(result.error for result in results):
        return Score(score.name, score.value, score.passed, reason, threshold, score.by, error=True)
    return score


async def decide_assertions(ctx: TraceContext, texts: Sequence[str]) -> list[AssertionResult]:
    """Return one result for each text, in order; one call of the judge decides all free statements."""
    checks = [parse_check(text) for text in texts]
    judge_results = iter(await _ask_judge(ctx, [check.text for check in checks if check.form == "judge"]))
    results: list[AssertionResult] = []
    for check in checks:
        results.append(next(judge_results) if check.form == "judge" else await _decide_check(ctx, check))
    return results


async def _decide_check(ctx: TraceContext, check: AssertionCheck) -> AssertionResult:
    """Return the result of an assertion that code decides."""
    match check.form:
        case "contains":
            is_met = fold_text(check.argument) in fold_text(ctx.trace.answer)
            evidence = f"the answer {'contains' if is_met else 'does not contain'} it"
        case "matches":
            return _match_pattern(ctx.trace, check)
        case "file":
            matching = [path for path in ctx.host.outputs if fnmatchcase(path, check.argument)]
            is_met = bool(matching)
            evidence = f"files: {', '.join(matching[:5])}" if matching else "no new or changed file matches"
        case "tool":
            is_met, evidence = _find_tool(ctx.trace, canonical_tool(check.argument), check.negated)
        case "check":
            return await _run_check(ctx.host, ctx.trace, check)
        case "judge":  # decided by _ask_judge
            raise AssertionError(check)
    return AssertionResult(check.text, is_met is not check.negated, evidence)


def _match_pattern(trace: Trace, check: AssertionCheck) -> AssertionResult:
    # re2 matches in linear time, so that no pattern of a set can stall the run.
    re2: Any = import_module("re2")  # has no type stubs
    try:
        match = re2.compile(f"(?m){check.argument}", _quiet_options(re2)).search(trace.answer)
    except re2.error as error:
        return AssertionResult(check.text, False, f"the pattern is invalid: {error}", error=True)
    evidence = f"found {match[0][:100]!r}" if match else "the answer has no match"
    return AssertionResult(check.text, (match is not None) is not check.negated, evidence)


def _quiet_options(re2: Any) -> Any:
    options = re2.Options()
    options.log_errors = False
    return options


def _find_tool(trace: Trace, tool: str, negated: bool) -> tuple[bool, str]:
    """Return (whether the tool counts as used, evidence): a successful call counts; if negated, every call counts."""
    calls = trace.calls_by_tool.get(tool, ())
    succeeded = sum(call.has_succeeded for call in calls)
    is_used = bool(calls) if negated else succeeded > 0
    return is_used, f"{tool} was called {len(calls)} times, {succeeded} succeeded"


async def _run_check(host: AttemptHost, trace: Trace, check: AssertionCheck) -> AssertionResult:
    """Run a script of the skill in the sandbox, on copies of the outputs, so that it cannot change them."""
    if host.executor is None or host.skill_folder is None or host.workspace is None:
        return AssertionResult(
            check.text, False, "there is no skill folder, workspace or executor to run the script", error=True
        )
    script, *arguments = shlex.split(check.argument)
    files = [File(path="answer.md", content=trace.answer.encode())]
    # An output named answer.md must not replace the answer that the script reads.
    files += [file for file in _read_outputs(host.workspace, host.outputs) if file.path != "answer.md"]
    try:
        result = await host.executor.execute(
            CodeExecutionInput(
                script=f"/skill/{script}",
                argv=tuple(arguments),
                input_files=tuple(files),
                mounts=(Mount(source=str(host.skill_folder), target="/skill"),),
                timeout_seconds=_CHECK_SECONDS,
                output_globs=(),
            )
        )
    except BoughError as error:
        return AssertionResult(check.text, False, f"{script} could not run: {error.message}", error=True)
    output = (result.stdout + result.stderr).decode("utf-8", "replace").strip()[:_MAX_EVIDENCE]
    evidence = output or (
        f"exit code {result.exit_code}" if not result.killed_by else f"killed by the limit {result.killed_by}"
    )
    return AssertionResult(check.text, result.ok is not check.negated, evidence)


def _read_outputs(workspace: Path, outputs: Sequence[str]) -> list[File]:
    """Return the contents of the output files, up to `_MAX_OUTPUT_BYTES` in total; links are omitted."""
    files: list[File] = []
    total = 0
    for name in outputs:
        path = workspace / name
        if path.is_symlink() or not path.is_file():
            continue
        total += path.stat().st_size
        if total > _MAX_OUTPUT_BYTES:
            break
        files.append(File(path=name, content=path.read_bytes()))
    return files


async def _ask_judge(ctx: TraceContext, statements: Sequence[str]) -> list[AssertionResult]:
    """Return the judge's result for each statement; errors without a judge."""
    if not statements:
        return []
    if ctx.host.judge is None:
        return [AssertionResult(text, False, "there is no judge", "judge", error=True) for text in statements]
    rubrics = [Rubric(f"a{number}", text) for number, text in enumerate(statements, 1)]
    judgement = await ctx.host.judge(ctx.trace, ctx.case, rubrics, ctx.host.outputs)
    ctx.judgements.append(judgement)
    return [
        AssertionResult(
            rubric.property, bool(verdict.verdict), verdict.rationale, "judge", error=verdict.verdict is None
        )
        for rubric, verdict in zip(rubrics, judgement.verdicts, strict=True)
    ]
