"""Eval sets of the Agent Development Kit: `eval_set_id`, `eval_cases` with conversations, tool uses and rubrics.

Keys may be in snake_case or in camelCase, as in ADK 2.13. ADK's older files are lists: of turns (`.test.json`), or of
`{name, data, initial_session}` with turns in `data` (`.evalset.json`). A turn has `query`, `expected_tool_use` and
`reference`.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from typing import Any, cast

from bough.evals.case import CaseInput, CaseSetup, Rubric, SetCase, ToolUse, TurnInput
from bough.evals.document import Entry, SetFile, limit_cases
from bough.evals.eval_set import EvalSet
from bough.types import Json, JsonObject

_CASE_FIELDS = frozenset({"eval_id", "conversation", "rubrics", "session_input", "conversation_scenario"})
_TURN_FIELDS = frozenset({"user_content", "intermediate_data", "final_response", "rubrics"})
_OLD_TURN_FIELDS = frozenset({"query", "expected_tool_use", "reference", "expected_intermediate_agent_responses"})
_TEXT_PART_FIELDS = frozenset(
    {"text", "thought", "thought_signature", "thoughtSignature", "video_metadata", "videoMetadata"}
)
_CAMEL_CASE_CAPITAL = re.compile(r"(?<=[a-z])([A-Z])")


def read_adk_set(document: SetFile, *, setup: CaseSetup = "chat") -> EvalSet:
    """Return the set of a file with `eval_cases`; cases with errors are omitted.

    Args:
        setup: The setup of an attempt at the cases.
    """
    faults = document.faults
    top = Entry(cast("JsonObject", document.data), faults, "")
    ids: set[str] = set()
    entries = limit_cases(top.entries("eval_cases", "evalCases"), faults, "eval_cases")
    cases = [_read_case(entry, ids, setup) for entry in entries]
    name = top.text("name") or top.text("eval_set_id", "evalSetId") or document.path.stem
    valid_cases = (case for case in cases if case is not None)
    return EvalSet.from_file(document, name, valid_cases, "adk", description=top.text("description") or "")


def is_old_adk_list(data: Sequence[Json]) -> bool:
    """Return whether a list is one of ADK's older files, and not a list of trigger queries."""
    entries = [cast("JsonObject", item) for item in data if isinstance(item, dict)]
    return any(
        isinstance(entry.get("data"), list)
        or ("query" in entry and not _OLD_TURN_FIELDS.isdisjoint({*entry} - {"query"}))
        for entry in entries
    )


def read_old_adk_list(document: SetFile, *, setup: CaseSetup = "chat") -> EvalSet:
    """Return the set of an older file: a list of turns is one case; each `{name, data, initial_session}` is a case."""
    name = document.path.stem.removesuffix(".test").removesuffix(".evalset")
    top = Entry({"data": document.data}, document.faults, "")
    entries = top.entries("data")
    if any("data" in entry.data for entry in entries):
        ids: set[str] = set()
        cases = [_read_old_case(entry, ids, setup) for entry in limit_cases(entries, document.faults, "data")]
    else:
        cases = [_make_old_case(Entry({"data": document.data}, document.faults, name), name, setup)]
    return EvalSet.from_file(document, name, (case for case in cases if case is not None), "adk")


def _read_old_case(entry: Entry, ids: set[str], setup: CaseSetup) -> SetCase | None:
    """Return the case of a `{name, data, initial_session}`; None if it has an error."""
    fault_count = len(entry.faults.items)
    id = _read_id(entry, ids, "name")
    case = _make_old_case(entry, id or entry.case, setup)
    return None if entry.faults.has_error(fault_count) else case


def _make_old_case(entry: Entry, id: str, setup: CaseSetup) -> SetCase | None:
    """Return the case of an entry whose `data` is a list of turns; None if a turn has an error."""
    fault_count = len(entry.faults.items)
    turns = [_read_old_turn(turn) for turn in entry.entries("data")]
    if not turns and not entry.faults.has_error(fault_count):
        entry.fault("no-prompt", "there is no turn", "data")
    state, metadata = _read_session(entry.entry("initial_session"))
    if entry.faults.has_error(fault_count):
        return None
    valid_turns = tuple(turn for turn in turns if turn is not None)
    return SetCase(id=id, input=CaseInput(turns=valid_turns, state=state, setup=setup), metadata=metadata)


def _read_old_turn(entry: Entry) -> TurnInput | None:
    """Return the turn of a `{query, expected_tool_use, reference}`; None without a query."""
    _collect_extra(entry, _OLD_TURN_FIELDS)
    user = entry.text("query", required=True)
    if user is not None and not user.strip():
        entry.fault("no-prompt", "`query` is empty", "query")
    uses: list[ToolUse] = []
    for use in entry.entries("expected_tool_use"):
        name = use.text("tool_name", required=True)
        args = use.object("tool_input")
        if name is not None and not name.strip():
            use.fault("missing", "`tool_name` is empty", "tool_name")
        elif name:
            uses.append(ToolUse(name, args or {}))
    reference = entry.text("reference")
    if not user or not user.strip():
        return None
    return TurnInput(user=user, tool_uses=tuple(uses), reference=reference or None)


def _read_id(entry: Entry, ids: set[str], *names: str) -> str | None:
    """Return the id of a case and set it for later faults; add a fault if it is missing, empty or a duplicate.

    Args:
        ids: The ids of earlier cases; the id is added.
        names: The spellings of the field.
    """
    id = entry.text(*names, required=True)
    if id is not None and not id.strip():
        entry.fault("missing", f"`{names[0]}` is empty", names[0])
    if id:
        entry.case = id
        if id in ids:
            entry.fault("duplicate-id", f"the id {id!r} already exists; this case is left out", names[0])
        ids.add(id)
    return id


def _read_session(session: Entry | None) -> tuple[JsonObject | None, JsonObject]:
    """Return the initial state of a case, and its other session fields as metadata."""
    if session is None:
        return None, {}
    other_fields = {key: value for key, value in session.data.items() if key != "state"}
    metadata: JsonObject = {"session_input": other_fields} if other_fields else {}
    return session.object("state") or None, metadata


def _read_case(entry: Entry, ids: set[str], setup: CaseSetup) -> SetCase | None:
    """Return the case of an entry of `eval_cases`; None if it has an error."""
    faults = entry.faults
    fault_count = len(faults.items)
    id = _read_id(entry, ids, "eval_id", "evalId")
    if entry.get("conversation_scenario", "conversationScenario") is not None:
        entry.fault("unsupported", "a conversation_scenario needs a simulated user", "conversation_scenario")
    turns = [_read_turn(turn) for turn in _set_case(entry.case, entry.entries("conversation"))]
    if not turns and not faults.has_error(fault_count):
        entry.fault("no-prompt", "there is no conversation", "conversation")
    rubrics = _read_rubrics(entry, set())
    state, session_metadata = _read_session(entry.entry("session_input", "sessionInput"))
    metadata = _collect_extra(entry, _CASE_FIELDS) | session_metadata
    _check_rubric_ids(entry, rubrics, turns)
    if faults.has_error(fault_count):
        return None
    valid_turns = tuple(turn for turn in turns if turn is not None)
    return SetCase(
        id=id or entry.case,
        input=CaseInput(turns=valid_turns, rubrics=rubrics, state=state, setup=setup),
        metadata=metadata,
    )


def _set_case(case: str, entries: Sequence[Entry]) -> Sequence[Entry]:
    """Set the case id that faults of the entries name, and return the entries."""
    for entry in entries:
        entry.case = case
    return entries


def _read_turn(entry: Entry) -> TurnInput | None:
    """Return the turn of an entry of `conversation`; None if its message has no text."""
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
    reference = None if response is None else _read_parts(response, is_sent=False)
    data = entry.entry("intermediate_data", "intermediateData")
    uses = tuple(_read_tool_uses(data)) if data is not None else ()
    return TurnInput(user=user, tool_uses=uses, reference=reference or None, rubrics=_read_rubrics(entry, set()))


def _read_parts(content: Entry, *, is_sent: bool = True) -> str:
    """Return the texts of a content's parts, joined by newlines.

    ADK writes every field of a part, most of them null. A part that is not text is an error in a message, because it
    cannot be sent, and only a note in an expected answer.

    Args:
        is_sent: Whether the content is a message; False for an expected answer, from which thoughts are omitted.
    """
    texts: list[str] = []
    for part in content.entries("parts"):
        text = part.text("text")
        set_fields = [key for key, value in part.data.items() if value is not None]
        kind = next((key for key in set_fields if key not in _TEXT_PART_FIELDS), None)
        if text is not None:
            if is_sent or part.get("thought") is not True:
                texts.append(text)
        elif kind is not None:
            message = f"a part of kind {kind!r} cannot be {'sent' if is_sent else 'compared'}"
            part.fault("unsupported", message, kind, "error" if is_sent else "note")
    return "\n".join(texts)


def _read_tool_uses(data: Entry) -> Iterator[ToolUse]:
    """Yield the expected calls of `tool_uses`, then those of `invocation_events`."""
    for use in data.entries("tool_uses", "toolUses"):
        yield from _read_tool_use(use)
    for event in data.entries("invocation_events", "invocationEvents"):
        content = event.entry("content")
        for part in content.entries("parts") if content is not None else ():
            call = part.entry("function_call", "functionCall")
            if call is not None:
                yield from _read_tool_use(call)


def _read_tool_use(use: Entry) -> Iterator[ToolUse]:
    name = use.text("name", required=True)
    args = use.object("args")
    if name is not None and not name.strip():
        use.fault("missing", "`name` is empty", "name")
    elif name:
        yield ToolUse(name, args or {})


def _read_rubrics(entry: Entry, ids: set[str]) -> tuple[Rubric, ...]:
    """Return the valid rubrics of a case or turn; add a fault for each rubric without text or with an id in `ids`."""
    rubrics: list[Rubric] = []
    for rubric in entry.entries("rubrics"):
        id = rubric.text("rubric_id", "rubricId", required=True)
        content = rubric.entry("rubric_content", "rubricContent")
        text = None if content is None else content.text("text_property", "textProperty")
        if content is None or text is None or not text.strip():
            rubric.fault("rubric-empty", "there is no `rubric_content.text_property` to judge by", "rubric_content")
        if id and id in ids:
            rubric.fault("duplicate-id", f"the rubric id {id!r} already exists", "rubric_id")
        if id and text and text.strip() and id not in ids:
            rubrics.append(Rubric(id, text, rubric.text("type") or ""))
        ids.add(id or "")
    return tuple(rubrics)


def _check_rubric_ids(entry: Entry, rubrics: Sequence[Rubric], turns: Sequence[TurnInput | None]) -> None:
    """Add a fault for each rubric id that the case and its turns use twice, since reports identify rubrics by id."""
    ids = {rubric.id for rubric in rubrics}
    for number, turn in enumerate(turns):
        for rubric in turn.rubrics if turn is not None else ():
            if rubric.id in ids:
                entry.fault("duplicate-id", f"the rubric id {rubric.id!r} already exists", f"conversation[{number}]")
            ids.add(rubric.id)


def _collect_extra(entry: Entry, field_names: frozenset[str]) -> dict[str, Any]:
    """Return the unknown fields, which become metadata; add a note with their names."""
    extra = {
        key: value
        for key, value in entry.data.items()
        if value is not None and _CAMEL_CASE_CAPITAL.sub(lambda match: f"_{match[1].lower()}", key) not in field_names
    }
    if extra:
        names = ", ".join(sorted(extra))
        entry.fault("unknown-field", f"saved as metadata, without effect: {names[:200]}", severity="note")
    return extra
