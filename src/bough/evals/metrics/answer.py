"""The metric of the answer's text."""

from __future__ import annotations

import unicodedata

from bough.evals.score import THRESHOLDS, Score, at_least
from bough.evals.trace import Trace


def output_correctness_score(
    trace: Trace, reference: str, *, threshold: float | None = THRESHOLDS["output_correctness_score"]
) -> Score:
    """Score the share of lines of the reference that occur in the answer, whatever the case and the white space."""
    name = "output_correctness_score"
    lines = [line.strip() for line in reference.splitlines() if line.strip()]
    if not lines:
        return at_least(name, 1.0, threshold, "the reference has no lines")
    answer = fold_text(trace.answer)
    missing = [line for line in lines if fold_text(line) not in answer]
    reason = f"not in the answer: {missing[0][:200]!r}" if missing else f"all {len(lines)} lines are in the answer"
    return at_least(name, 1 - len(missing) / len(lines), threshold, reason)


def fold_text(text: str) -> str:
    """Return a text as it is compared: composed (NFC), case-folded, with single spaces."""
    return " ".join(unicodedata.normalize("NFC", text).casefold().split())
