"""Describe events as text: one line with position and kind, and further lines for the content.

Events are flat JSON, so that `bough conv show` need not import the event models and pydantic.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, cast

from bough.cli.target import short
from bough.cli.text import Line, Span, Style, line, one_line, paragraph
from bough.types import Json, JsonObject

Description = tuple[str, Sequence[Span], str]
"""(word for the kind of an event, summary on the same line, text on the lines below)"""

MAX_TEXT_LINES = 24
SUBJECTS = ("command", "cmd", "path", "file_path", "url", "query", "question", "skill_name", "name")
"""Arguments that say most of a call, in this order."""

MAX_RESULT_LINES = 6
INDENT = 17


def describe(
    event: JsonObject, *, full: bool = False, thinking: bool = False, more: str = ", --full shows them"
) -> Iterator[Line]:
    """Yield the lines about one event, given as flat JSON.

    Args:
        full: Yield the text in full; otherwise only its first lines, fewer for the result of a tool.
        thinking: Yield what the model thought before its response, in full.
        more: The note after a shortened text, which says how to see all of it; `{seq}` is the number of the event.
    """
    word, summary, text = describe_event(event)
    yield line((f"{event['seq']:>5}  ", "dim"), (f"{word:<9} ", _STYLES.get(word, "")), *summary, hang=INDENT)
    for thought in read_thinking(event).splitlines() if thinking else ():
        yield line((f"{'':{INDENT}}{thought}", "dim"), hang=INDENT)
    lines = text.splitlines()
    max_lines = MAX_RESULT_LINES if word == "result" else MAX_TEXT_LINES
    # One line more than the limit is shown, because the note about it would take a line too.
    visible = lines if full or len(lines) <= max_lines + 1 else lines[:max_lines]
    yield from paragraph("\n".join(visible), indent=INDENT)
    if len(visible) < len(lines):
        yield line((f"{'':{INDENT}}… {len(lines) - len(visible)} more lines{more.format(seq=event['seq'])}", "dim"))


def describe_event(event: JsonObject) -> Description:
    """Return a word for the kind of an event, its summary and its text."""
    # Unknown kinds, for example from a newer version, are described by their fields.
    return _DESCRIBERS.get(event["kind"], _describe_fields)(event)


def arguments(values: Json) -> str:
    """Return the arguments of a tool call on one line."""
    if not isinstance(values, dict):
        return one_line(str(values))
    pairs = cast("dict[str, Json]", values).items()
    return one_line(" ".join(f"{key}={_to_json(value)}" for key, value in pairs))


def script_line(event: JsonObject) -> Line:
    """Return the progress line of a script that ran."""
    has_succeeded = event["status"] == "success"
    call = one_line(" ".join([event["script"], *event.get("argv", [])]), 44)
    outcome = "ok" if has_succeeded else describe_outcome(event)
    return line(
        ("  script   ", "dim"),
        f"{call}  ",
        (outcome, "good" if has_succeeded else "bad"),
        (_duration(event), "dim"),
        hang=11,
    )


def check_line(event: JsonObject) -> Line:
    """Return the progress line of a check that ran."""
    outcome: Span = ("passed", "good") if event["passed"] else (describe_outcome(event), "bad")
    command = one_line(event["command"], 44)
    return line(("  check    ", "dim"), f"{command}  ", outcome, (_duration(event), "dim"), hang=11)


def skill_line(event: JsonObject) -> Line:
    """Return the progress line of an activated skill."""
    return line(("  skill    ", "dim"), (event["name"], "strong"), (f"  {_describe_trigger(event)}", "dim"), hang=11)


def render_skip(event: JsonObject) -> Line:
    """Return the progress line of a skipped skill."""
    return line(("  skill    ", "dim"), (event["name"], "strong"), (f"  skipped: {event['message']}", "warn"))


def retry_line(event: JsonObject) -> Line:
    """Return the progress line of a request that is repeated, or sent to another model or address."""
    return line(("  ", ""), (_describe_retry(event), "warn"), hang=4)


def tool_line(event: JsonObject, values: Json) -> Line:
    """Return the progress line of a tool call that ended: the tool, its main argument, the size, the time.

    Args:
        values: The arguments of the call; None if they are not known.
    """
    subject = _find_subject(values)
    call = f"{event['tool']} {subject}" if subject else event["tool"]
    if event["kind"] == "ToolReturned":
        return line(("  ✓ ", "good"), call, (_size(event.get("result")) + _duration(event), "dim"), hang=4)
    reason = one_line(event.get("error") or event.get("reason") or "", 100)
    ending = {"ToolRejected": "not run", "ToolInterrupted": "interrupted"}.get(event["kind"], "")
    problem = ": ".join(filter(None, (ending, reason)))
    return line(("  ✗ ", "bad"), call, (f"  {problem}" if problem else "", "bad"), (_duration(event), "dim"), hang=4)


def read_thinking(event: JsonObject) -> str:
    """Return what the model thought before a response; empty if it told nothing."""
    if event["kind"] != "ModelResponded":
        return ""
    parts = event["response"].get("parts", [])
    return "\n".join(str(part.get("content") or "") for part in parts if part.get("part_kind") == "thinking").strip()


def thinking_line(event: JsonObject) -> Line | None:
    """Return the folded thinking of a response on one line; None if it has none."""
    text = read_thinking(event)
    if not text:
        return None
    words = len(text.split())
    return line((f"  thought  {one_line(text, 60)} ({words} word{'s' * (words != 1)})", "dim"), hang=4)


def _find_subject(values: Json) -> str:
    """Return the argument that says most of a call: a path, command, address or name; else all, shortened."""
    if not isinstance(values, dict) or not values:
        return ""
    fields = cast("dict[str, Json]", values)
    subject = next((text for name in SUBJECTS if isinstance(text := fields.get(name), str)), None)
    return one_line(arguments(values) if subject is None else subject, 60)


def _size(result: Json) -> str:
    if isinstance(result, str):
        count = len(result.splitlines())
        return f" ({count} line{'s' * (count != 1)})"
    if isinstance(result, list):
        count = len(cast("list[Json]", result))
        return f" ({count} item{'s' * (count != 1)})"
    status = cast("dict[str, Json]", result).get("exit_code") if isinstance(result, dict) else None
    return f" (exit code {status})" if status else ""


_REASONS = {
    429: "rate limited",
    500: "server error",
    502: "bad gateway",
    503: "overloaded",
    504: "gateway timeout",
    529: "overloaded",
}


def _describe_retry(event: JsonObject) -> str:
    status = event.get("status")
    reason = f"{status} {_REASONS[status]}" if status in _REASONS else one_line(event["error"])
    if event.get("next_model"):
        return f"using {event['next_model']} instead of {event['model']}: {reason}"
    if not event["wait_seconds"] and "; trying " in event["error"]:
        return str(event["error"])
    seconds = event["wait_seconds"]
    wait = f"{seconds:.0f}" if seconds >= 1 else f"{seconds:.1f}"
    return f"retrying in {wait} s ({event['attempt'] + 1} of {event['attempts']}): {reason}"


def describe_outcome(event: JsonObject) -> str:
    """Return how a script that did not succeed ended."""
    if event.get("timed_out"):
        return "timed out"
    if event.get("exit_code") is not None:
        return "warning" if event["exit_code"] == 0 else f"exit code {event['exit_code']}"
    return f"ended by {event['killed_by']}" if event.get("killed_by") else "not run"


def _duration(event: JsonObject) -> str:
    seconds = event.get("duration_seconds", event.get("wall_seconds", event.get("seconds")))
    return f"  {seconds:.2f} s" if seconds else ""


def _to_json(value: Json) -> str:
    return json.dumps(value, ensure_ascii=False)


def _describe_trigger(event: JsonObject) -> str:
    """Return why a skill was activated."""
    keyword = event.get("keyword")
    match event.get("trigger"):
        case "keyword" | "task" | "path":
            return f'matched {event["trigger"]} "{keyword}"'
        case "slash":
            return f"called as {keyword}"
        case "tool":
            return "loaded by the model"
        case other:
            return str(other)


def _join_parts(parts: Sequence[Mapping[str, Any]]) -> str:
    return "\n".join(str(part.get("text", f"[{part.get('type')}: {part.get('path', '')}]")) for part in parts)


def _describe_started(event: JsonObject) -> Description:
    agent = event.get("agent", {})
    summary = f"agent {agent.get('name', '?')}, model {agent.get('model') or '?'}, in {event.get('workspace')}"
    return "started", [(summary, "dim")], ""


def _describe_forked(event: JsonObject) -> Description:
    reason = f"  {event['reason']}" if event.get("reason") else ""
    source = short(event["source"])
    return "fork", [("of ", ""), (f"{source}@{event['at']}", "id"), (reason, "")], ""


def _describe_message(event: JsonObject) -> Description:
    sender = event.get("sender", "user")
    text = _join_parts(event["content"])
    head, _, body = text.partition("\n")
    sender_prefix = "" if sender == "user" else f"({sender}) "
    return "user", [(sender_prefix, "dim"), (head, "strong")], body


def _describe_response(event: JsonObject) -> Description:
    parts: list[dict[str, Any]] = event["response"].get("parts", [])
    text = "".join(str(part["content"]) for part in parts if part.get("part_kind") == "text").strip()
    calls = [str(part["tool_name"]) for part in parts if part.get("part_kind") == "tool-call"]
    usage = event.get("usage", {})
    tokens = usage.get("input_tokens", 0) + usage.get("output_tokens", 0)
    summary: list[Span] = [(event.get("model") or "?", "dim")]
    if calls:
        summary.append((f"  calls {', '.join(calls)}", ""))
    if tokens:
        cached = usage.get("cache_read_tokens", 0)
        share = f", {cached / usage['input_tokens']:.0%} of the input cached" if cached else ""
        summary.append((f"  {tokens} tokens{share}", "dim"))
    return "model", summary, text


def _describe_stored(event: JsonObject) -> Description:
    """Describe a PydanticAI message that was stored as it is."""
    message: dict[str, Any] = event["message"]
    if message.get("kind") == "response":
        return _describe_response(
            {"response": message, "model": message.get("model_name"), "usage": message.get("usage") or {}}
        )
    parts: list[dict[str, Any]] = message.get("parts", [])
    text = "\n".join(_part_text(part.get("content")) for part in parts)
    if all(part.get("part_kind") == "tool-return" for part in parts):
        return "result", [(", ".join(str(part.get("tool_name")) for part in parts), "")], text
    head, _, body = text.partition("\n")
    return "user", [(head, "strong")], body


def _part_text(content: Any) -> str:
    """Return the text of a message part's content, which is one item or a list of items."""
    items = cast("list[Any]", content) if isinstance(content, list) else [content]
    return "\n".join(map(_item_text, items))


def _item_text(item: Any) -> str:
    match item:
        case str():
            return item
        case {"kind": "binary", "media_type": str(media_type)}:
            return f"[{media_type}]"
        case _:
            return one_line(_to_json(item))


def _describe_called(event: JsonObject) -> Description:
    return "call", [(event["tool"], ""), (f"  {arguments(event.get('arguments', {}))}", "dim")], ""


def _describe_returned(event: JsonObject) -> Description:
    result = event.get("result")
    if isinstance(result, dict) and "stdout" in result:
        script = cast("dict[str, Any]", result)
        style: Style = "bad" if script.get("status") == "error" else "good"
        summary: list[Span] = [(event["tool"], ""), (f"  {script.get('status')}", style), (_duration(event), "dim")]
        return "result", summary, "\n".join(filter(None, (script["stdout"], script.get("stderr"), script.get("error"))))
    text = result if isinstance(result, str) else json.dumps(result, ensure_ascii=False)
    return "result", [(event["tool"], ""), (_duration(event), "dim")], text


def _describe_failed(event: JsonObject) -> Description:
    return "failed", [(event["tool"], ""), (_duration(event), "dim")], event["error"]


def _describe_rejected(event: JsonObject) -> Description:
    return "rejected", [(event["tool"], ""), (f"  by {event['by']}", "dim")], event.get("reason", "")


def _describe_interrupted(event: JsonObject) -> Description:
    return "lost", [(event["tool"], ""), (f"  {event.get('reason', '')}", "dim")], ""


def _describe_skill(event: JsonObject) -> Description:
    return "skill", [(event["name"], "strong"), (f"  {_describe_trigger(event)}", "dim")], ""


def _describe_skipped(event: JsonObject) -> Description:
    return "skipped", [(event["name"], "strong"), (f"  {event['message']}", "warn")], event.get("hint", "")


def _describe_script(event: JsonObject) -> Description:
    has_succeeded = event["status"] == "success"
    call = one_line(" ".join([event["script"], *event.get("argv", [])]))
    outcome: Span = ("  ok", "good") if has_succeeded else (f"  {describe_outcome(event)}", "bad")
    details: Span = (f"{_duration(event)}  {event.get('isolation', '')}", "dim")
    return "script", [(call, ""), outcome, details], event.get("error") or ""


def _describe_changed(event: JsonObject) -> Description:
    changes = {key: value for key, value in event["changes"].items() if key not in _LONG_CHANGES}
    summary = ", ".join(f"{key} {_plain(value)}" for key, value in changes.items() if value)
    agent = event["changes"].get("agent")
    if agent:
        summary = ", ".join(filter(None, [f"model {agent.get('model')}", summary]))
    reason = f" ({event['reason']})" if event.get("reason") else ""
    return "changed", [(one_line(summary) + reason, "dim")], ""


def _plain(value: Json) -> str:
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)


def _describe_task(event: JsonObject) -> Description:
    text = " ".join(filter(None, (event.get("error"), event.get("reason"))))
    attempt = f", attempt {event['attempt']}" if event.get("attempt", 0) > 1 else ""
    return "task", [(f"{event['state']}{attempt}", "dim")], text


def _describe_note(event: JsonObject) -> Description:
    data: JsonObject = event.get("data") or {}
    if event.get("name") == "eval.result":
        reason = f"  {one_line(str(data.get('reason') or ''))}".rstrip()
        return "note", [(f"eval result: {data.get('status')}{reason}", "dim")], ""
    return "note", [(f"{event.get('name') or event.get('event_type')}  {arguments(data)}", "dim")], ""


def _describe_linked(event: JsonObject) -> Description:
    agent, child = event.get("agent") or "?", str(event.get("conversation") or event["task_id"])
    return "task", [(f"agent {agent} started in ", "dim"), (short(child), "id")], ""


def _describe_error(event: JsonObject) -> Description:
    return "error", [(event["message"], "bad")], event.get("hint", "")


def _describe_repeat(event: JsonObject) -> Description:
    return "retry", [(_describe_retry(event), "warn")], ""


def _describe_pause(event: JsonObject) -> Description:
    reason = f": {event['reason']}" if event.get("reason") else ""
    return "pause", [(f"requested by {event.get('by', 'user')}{reason}", "dim")], ""


def _describe_limit(event: JsonObject) -> Description:
    return "limit", [(f"{event['value']:g} of {event['bound']:g} {event['limit'].replace('_', ' ')}", "warn")], ""


def _describe_stuck(event: JsonObject) -> Description:
    return "stuck", [(f"the agent repeats itself: {event['pattern']}", "warn")], ""


def _describe_rules(event: JsonObject) -> Description:
    return "rules", [(f"changed, ignored until you agree: {', '.join(event['paths']) or 'inherited'}", "warn")], ""


def _describe_files(event: JsonObject) -> Description:
    if event.get("tree") is None:
        return "files", [(f"not stored: {event.get('reason') or 'unknown reason'}", "warn")], ""
    counts = ", ".join(f"{event[name]} {name}" for name in ("added", "changed", "removed") if event.get(name))
    return "files", [(f"{event.get('files', 0)} stored{f': {counts}' if counts else ''}", "dim")], ""


def _describe_check(event: JsonObject) -> Description:
    outcome: Span = ("  passed", "good") if event["passed"] else (f"  {describe_outcome(event)}", "bad")
    output = "\n".join(filter(None, (event.get("stdout"), event.get("stderr"))))
    return "check", [(one_line(event["command"]), ""), outcome], output


def _describe_hook(event: JsonObject) -> Description:
    verdict = event.get("verdict", "none")
    style: Style = "bad" if verdict in ("deny", "error") else "dim"
    return "hook", [(event["hook"], ""), (f"  {verdict}", style), (_duration(event), "dim")], event.get("output", "")


def _describe_condensed(event: JsonObject) -> Description:
    return "condensed", [(f"events {event['start']} to {event['stop'] - 1}", "dim")], event["summary"]


def _describe_imported(event: JsonObject) -> Description:
    signer = "signed" if event.get("signer") else "unsigned"
    if event.get("trusted"):
        signer = "by a trusted signer"
    return "imported", [(f"{event['count']} events, {signer}", "dim")], ""


def _describe_output(event: JsonObject) -> Description:
    return "output", [(event["output_type"], "dim")], _to_json(event["data"])


def _describe_usage(event: JsonObject) -> Description:
    usage = event.get("usage", {})
    tokens = usage.get("input_tokens", 0) + usage.get("output_tokens", 0)
    return "usage", [(f"{event['purpose']}  {event.get('model') or '?'}  {tokens} tokens", "dim")], ""


def _describe_task_end(event: JsonObject) -> Description:
    return "task", [(event["state"], "dim")], event.get("error") or event.get("result") or ""


def _describe_fields(event: JsonObject) -> Description:
    fields = {key: value for key, value in event.items() if key not in ("seq", "id", "kind", "ts", "schema_version")}
    return event["kind"], [(f" {arguments(fields)}", "dim")], ""


_DESCRIBERS: Mapping[str, Callable[[JsonObject], Description]] = {
    "ConversationStarted": _describe_started,
    "ForkedFrom": _describe_forked,
    "UserMessage": _describe_message,
    "ModelResponded": _describe_response,
    "ToolCalled": _describe_called,
    "ToolReturned": _describe_returned,
    "ToolFailed": _describe_failed,
    "ToolRejected": _describe_rejected,
    "ToolInterrupted": _describe_interrupted,
    "SkillActivated": _describe_skill,
    "SkillSkipped": _describe_skipped,
    "ScriptRan": _describe_script,
    "StateChanged": _describe_changed,
    "ErrorRaised": _describe_error,
    "TaskChanged": _describe_task,
    "TaskNoted": _describe_note,
    "TaskLinked": _describe_linked,
    "MessageStored": _describe_stored,
    "RequestRetried": _describe_repeat,
    "PauseRequested": _describe_pause,
    "LimitReached": _describe_limit,
    "StuckDetected": _describe_stuck,
    "RulesChanged": _describe_rules,
    "FilesKept": _describe_files,
    "CheckRan": _describe_check,
    "HookRan": _describe_hook,
    "Condensed": _describe_condensed,
    "Imported": _describe_imported,
    "OutputGiven": _describe_output,
    "UsageAdded": _describe_usage,
    "TaskEnded": _describe_task_end,
}

_LONG_CHANGES = frozenset({"agent", "instructions", "saved"})
"""Keys of `changes` whose values are too long for a line."""

_STYLES: Mapping[str, Style] = {
    "user": "good",
    "model": "id",
    "failed": "bad",
    "error": "bad",
    "rejected": "warn",
    "lost": "warn",
    "skipped": "warn",
    "fork": "warn",
}
