"""The judge: a model that decides whether properties hold, its prompt, its verdicts, and how far people agree."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from bough.evals.judge import agreement
    from bough.evals.judge.judge import Judge
    from bough.evals.judge.verdict import Judgement, RubricVerdict

__all__ = ["Judge", "Judgement", "RubricVerdict", "agreement"]

_HOMES = {
    "Judge": "bough.evals.judge.judge",
    "Judgement": "bough.evals.judge.verdict",
    "RubricVerdict": "bough.evals.judge.verdict",
}


def __getattr__(name: str) -> Any:
    if name == "agreement":
        return import_module("bough.evals.judge.agreement")
    if name in _HOMES:
        return getattr(import_module(_HOMES[name]), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
