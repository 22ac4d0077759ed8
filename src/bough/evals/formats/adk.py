"""Eval sets of the Agent Development Kit: `eval_set_id`, `eval_cases` with conversations, tool uses and rubrics.

Source: seed 003; the eval set model of ADK 2.13, whose keys come in snake_case and in camelCase.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from typing import Any, cast

from bough.evals.case import CaseInput, CaseSetup, Rubric, ToolUse, TurnInput
from bough.evals.document import MAX_CASES, Entry, SetFile
from bough.evals.eval_set import EvalSet
from bough.evals.set_case import SetCase
from bough.types import JsonObject

_CASE_FIELDS = frozenset({"eval_id", "conversation", "rubrics", "session_input", "conversation_scenario"})
_TURN_FIELDS = frozenset({"user_content", "intermediate_data", "final_response", "rubrics"})
_CAMEL = re.compile(r"(?<=[a-z])([A-Z])")


def read_adk_set(document: SetFile, *, setup: CaseSetup = "chat") -> EvalSet:
    """Return the set of a file with `eval_cases`; a case with an error is left out, the others are kept.

    Args:
        setup: What its cases need around them.
    """
    faults = document.faults
    top = Entry(cast("JsonObject", document.data), faults, "")
    cases: list[SetCase] = []
    seen: set[str] = set()
    entries = top.entries("eval_cases", "evalCases")
    if len(entries) > MAX_CASES:
        faults.add("too-many", f"has {len(entries)} cases, more than {MAX_CASES}")
        entries = entries[:MAX_CASES]
    for entry in entries:
        case = _read_case(entry, seen, setup)
        if case is not None:
            cases.append(case)
    if not entries:
        faults.add("empty", "has no cases", field="eval_cases")
    name = top.text("name") or top.text("eval_set_id", "evalSetId") or document.path.stem
    return EvalSet(
        name=name,
        cases=tuple(cases),
        faults=tuple(faults.found),
        path=document.path,
        sha256=document.sha256,
        format="adk",
        description=top.text("description") or "",
    )


def _read_case(entry: Entry, seen: set[str], setup: CaseSetup) -> SetCase | None:
    faults, before = entry.faults, len(entry.faults.found)
    id = entry.text("eval_id", "evalId", required=True)
    if id is not None and not id.strip():
        entry.fault("missing", "`eval_id` is empty", "eval_id")
    if id:
        entry.case = id
        if id in seen:
            entry.fault("duplicate-id", f"the id {id!r} already exists; this case is left out", "eval_id")
        seen.add(id)
    if entry.get("conversation_scenario", "conversationScenario") is not None:
        entry.fault("unsupported", "a conversation_scenario needs a simulated user", "conversation_scenario")
    turns = [_read_turn(each) for each in _with_case(entry, entry.entries("conversation"))]
    if not turns and not faults.has_error(before):
        entry.fault("no-prompt", "there is no conversation", "conversation")
    rubrics = _read_rubrics(entry, set())
    session = entry.entry("session_input", "sessionInput")
    state = None if session is None else session.object("state")
    metadata = _collect_extra(entry, _CASE_FIELDS)
    if session is not None and (rest := {k: v for k, v in session.data.items() if k != "state"}):
        metadata["session_input"] = rest
    _check_ids(entry, rubrics, turns)
    if faults.has_error(before):
        return None
    known = tuple(turn for turn in turns if turn is not None)
    return SetCase(
        id=id or entry.case,
        input=CaseInput(turns=known, rubrics=rubrics, state=state or None, setup=setup),
        metadata=metadata,
    )


def _with_case(case: Entry, entries: Sequence[Entry]) -> Sequence[Entry]:
    for entry in entries:
        entry.case = case.case
    return entries


def _read_turn(entry: Entry) -> TurnInput | None:
    _collect_extra(entry, _TURN_FIELDS)
    content = entry.entry("user_content", "userContent")
    if content is None:
        if entry.get("user_content", "userContent") is None:
            entry.fault("no-prompt", "`user_content` is missing", "user_content")
        return None
    user = _read_parts(content)
    if not user.strip():
        content.fault("no-prompt", "the message has no text", "parts")
        return None
    response = entry.entry("final_response", "finalResponse")
    reference = None if response is None else _read_parts(response)
    data = entry.entry("intermediate_data", "intermediateData")
    uses = tuple(_read_uses(data)) if data is not None else ()
    return TurnInput(user=user, tool_uses=uses, reference=reference or None, rubrics=_read_rubrics(entry, set()))


def _read_parts(content: Entry) -> str:
    """Return the texts of a content's parts, joined by new lines; a part without text is a fault."""
    texts: list[str] = []
    for part in content.entries("parts"):
        if part.get("text") is not None:
            texts.append(part.text("text") or "")
        elif part.data:
            kind = next(iter(part.data))
            part.fault("unsupported", f"a part of kind {kind!r} cannot be sent", kind)
    return "\n".join(texts)


def _read_uses(data: Entry) -> Iterator[ToolUse]:
    for use in data.entries("tool_uses", "toolUses"):
        yield from _read_use(use)
    for event in data.entries("invocation_events", "invocationEvents"):
        content = event.entry("content")
        for part in content.entries("parts") if content is not None else ():
            call = part.entry("function_call", "functionCall")
            if call is not None:
                yield from _read_use(call)


def _read_use(use: Entry) -> Iterator[ToolUse]:
    name, args = use.text("name", required=True), use.object("args")
    if name is not None and not name.strip():
        use.fault("missing", "`name` is empty", "name")
    elif name:
        yield ToolUse(name, args or {})


def _read_rubrics(entry: Entry, seen: set[str]) -> tuple[Rubric, ...]:
    found: list[Rubric] = []
    for rubric in entry.entries("rubrics"):
        id = rubric.text("rubric_id", "rubricId", required=True)
        content = rubric.entry("rubric_content", "rubricContent")
        text = None if content is None else content.text("text_property", "textProperty")
        if content is None or text is None or not text.strip():
            rubric.fault("rubric-empty", "there is no `rubric_content.text_property` to judge by", "rubric_content")
        if id and id in seen:
            rubric.fault("duplicate-id", f"the rubric {id!r} already exists", "rubric_id")
        if id and text and text.strip() and id not in seen:
            found.append(Rubric(id, text, rubric.text("type") or ""))
        seen.add(id or "")
    return tuple(found)


def _check_ids(entry: Entry, rubrics: Sequence[Rubric], turns: Sequence[TurnInput | None]) -> None:
    """Rubrics of a turn and of its case are told apart by id in reports."""
    ids = {rubric.id for rubric in rubrics}
    for number, turn in enumerate(turns):
        for rubric in turn.rubrics if turn is not None else ():
            if rubric.id in ids:
                entry.fault("duplicate-id", f"the rubric {rubric.id!r} already exists", f"conversation[{number}]")
            ids.add(rubric.id)


def _collect_extra(entry: Entry, known: frozenset[str]) -> dict[str, Any]:
    """Return the fields that are kept as they are; a note says which."""
    extra = {
        key: value
        for key, value in entry.data.items()
        if value is not None and _CAMEL.sub(lambda found: f"_{found[1].lower()}", key) not in known
    }
    if extra:
        names = ", ".join(sorted(extra))
        entry.fault("unknown-field", f"kept, without effect: {names[:200]}", severity="note")
    return extra
