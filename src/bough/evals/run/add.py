"""From a log to a case: what was asked, called and answered becomes what is expected."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from bough.errors import InvalidInput
from bough.evals.case import CaseInput, ToolUse, TurnInput
from bough.evals.eval_set import EvalSet
from bough.evals.set_case import SetCase
from bough.evals.trace import Trace
from bough.events.record import StoredEvent


def case_of_log(events: Sequence[StoredEvent], name: str) -> SetCase:
    """Return the case that a conversation is an example of: its messages, their tool uses and their answers.

    Raises:
        InvalidInput: Nothing was asked in it.
    """
    turns = tuple(
        TurnInput(
            user="\n".join(turn.requests),
            tool_uses=tuple(ToolUse(call.tool, call.arguments) for call in turn.calls if call.error is None),
            reference=turn.answer or None,
        )
        for turn in Trace.of(events).turns
        if any(text.strip() for text in turn.requests)
    )
    if not turns:
        raise InvalidInput("the conversation has no message to make a case of", hint="name another one")
    return SetCase(id=name, input=CaseInput(turns=turns))


def add_case(existing: EvalSet | None, path: Path, case: SetCase) -> EvalSet:
    """Write a case behind those of a pydantic-evals file, whole or not at all, and return the set.

    Args:
        existing: What the file holds; None where there is none yet.

    Raises:
        InvalidInput: The file has errors, is of another format, or has a case of that name.
        StoreError: It cannot be written.
    """
    eval_set = existing or EvalSet(name=path.stem, cases=())
    if eval_set.format != "pydantic":
        raise InvalidInput(f"{path} is not a pydantic-evals file", hint="name a .yaml file; it is made if missing")
    if eval_set.has_errors and eval_set.cases:
        raise InvalidInput(f"{path} has errors, and a case would be lost", hint="fix the faults first")
    if eval_set.case(case.id) is not None:
        raise InvalidInput(f"{path} has a case {case.id!r}", hint="give another --name")
    added = replace(eval_set, cases=(*eval_set.cases, case))
    added.save(path)
    return added
