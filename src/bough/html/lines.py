"""Rows of one line: what events other than messages, responses and calls say, and what of them is only bookkeeping."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from typing import Any, Final

from bough.html.fields import (
    first_line,
    join_words,
    read_count,
    read_list,
    read_number,
    read_object,
    read_text,
    read_texts,
)
from bough.html.numbers import count_of, format_bytes, format_count, format_duration
from bough.html.rows import ErrorRow, Fact, LineRow, QuietItem, Row, Tone, list_usage_facts, read_moment
from bough.types import JsonObject

_RULE_CHANGES: Final = ("policies", "agent", "instructions", "workspace", "adopted", "edited")
"""Changes that a reader must see; others are bookkeeping."""

_HIDDEN_FIELDS: Final = frozenset({"seq", "id", "kind", "ts", "schema_version"})
_SHORT_ID: Final = 8


def describe_line(event: JsonObject) -> Row | QuietItem:
    """Return the row of an event, or the item of a folded row for bookkeeping. An unknown kind is shown as JSON."""
    describe = _DESCRIBERS.get(read_text(event, "kind"))
    return _describe_unknown(event) if describe is None else describe(event)


def describe_task(linked: JsonObject | None, ended: JsonObject | None) -> LineRow:
    """Return the row of a sub-agent's task: how it was started, and how it ended.

    Args:
        linked: The `TaskLinked`; None if it is not among the events that were read.
        ended: The `TaskEnded`; None while the task is open. At least one of the two is given.
    """
    events = [event for event in (linked, ended) if event is not None]
    first, start, end = events[0], linked or {}, ended or {}
    state = read_text(end, "state") or ("runs in the background" if start.get("background") is True else "started")
    conversation = read_text(start, "conversation")
    failed = state in ("failed", "cancelled")
    code = read_text(end, "code")
    return _line(
        first,
        "sub",
        "" if read_text(start, "agent") else f"task {read_text(first, 'task_id')[:_SHORT_ID]}",
        label=read_text(start, "agent"),
        seqs=tuple(read_count(event, "seq") for event in events),
        facts=(
            Fact(state, "bad" if failed else ""),
            *([Fact(code, "bad")] if code else []),
            *list_usage_facts(read_object(end, "usage")),
        ),
        body=join_lines(read_text(end, "error"), read_text(end, "result")) or end.get("data"),
        link=f"/c/{conversation}" if conversation else "",
    )


def join_lines(*texts: str) -> str:
    """Return the texts that are not empty, each on lines of its own."""
    return "\n".join(filter(None, texts))


def _line(event: JsonObject, icon: str, text: str, *, seqs: tuple[int, ...] = (), **fields: Any) -> LineRow:
    return LineRow(seqs=seqs or (read_count(event, "seq"),), moment=read_moment(event), icon=icon, text=text, **fields)


def _quiet(event: JsonObject, word: str, text: str = "") -> QuietItem:
    return QuietItem(seq=read_count(event, "seq"), word=word, text=text)


def _dump_short(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)


def _describe_unknown(event: JsonObject) -> LineRow:
    fields = {name: value for name, value in event.items() if name not in _HIDDEN_FIELDS}
    return _line(event, "log", "", label=read_text(event, "kind"), body=fields)


def _describe_started(event: JsonObject) -> LineRow:
    agent = read_object(event, "agent")
    tags = read_object(event, "tags")
    text = join_words([
        f"Started with {read_text(agent, 'name') or 'an agent'}",
        read_text(agent, "model"),
        read_text(event, "workspace"),
        read_text(event, "title"),
        " ".join(f"{name}:{_dump_short(value)}" for name, value in tags.items()),
    ])  # fmt: skip
    body = {
        name: event[name] for name in ("instructions", "agent", "policies") if event.get(name) not in (None, "", {})
    }
    return _line(event, "run", text, body=body)


def _describe_forked(event: JsonObject) -> LineRow:
    source, at = read_text(event, "source"), read_count(event, "at")
    text = join_words([
        f"after {count_of(at, 'event')}",
        read_text(event, "actor"),
        read_text(event, "reason"),
        f"open calls: {read_text(event, 'pending')}" if event.get("pending") not in (None, "close") else "",
        f"files: {read_text(event, 'workspace')}" if event.get("workspace") not in (None, "shared") else "",
    ])  # fmt: skip
    overrides = read_object(event, "overrides")
    # `at` counts events, so the last one that both share is the one before.
    link = f"/c/{source}?at={max(at - 1, 0)}#e{max(at - 1, 0)}" if source else ""
    return _line(event, "fork", text, label=f"Fork of {source[:_SHORT_ID]}", body=overrides or None, link=link)


def _describe_skill(event: JsonObject) -> LineRow:
    keyword = read_text(event, "keyword")
    match event.get("trigger"):
        case "keyword" | "task" | "path":
            reason = f"by the {event['trigger']} “{keyword}”"
        case "slash":
            reason = f"called as {keyword}"
        case "tool":
            reason = "loaded by the model"
        case "always":
            reason = "always"
        case _:
            reason = read_text(event, "trigger")
    tools = read_texts(event, "allowed_tools")
    inputs = " ".join(f"{name}={_dump_short(value)}" for name, value in read_object(event, "inputs").items())
    text = join_words([f"skill in use {reason}", inputs, f"allows only {', '.join(tools)}" if tools else ""])
    return _line(event, "skill", text, label=read_text(event, "name"), body=read_text(event, "rendered"))


def _describe_skipped(event: JsonObject) -> LineRow:
    text = join_words([f"skill not in use: {read_text(event, 'message')}", read_text(event, "hint")])
    facts = (Fact(read_text(event, "code"), "warn"),)
    return _line(event, "skill", text, label=read_text(event, "name"), tone="warn", facts=facts)


def _describe_script(event: JsonObject) -> LineRow:
    words = (read_text(event, "script"), *read_texts(event, "argv"))
    has_failed = event.get("status") == "error"
    facts = [Fact("failed", "bad")] if has_failed else []
    facts += [Fact(fact) for fact in describe_script_facts(event)]
    return _line(
        event,
        "run",
        " ".join(words),
        label=read_text(event, "skill"),
        facts=tuple(facts),
        body=join_lines(read_text(event, "error"), "\n".join(read_texts(event, "output_files"))),
    )


def describe_script_facts(event: JsonObject) -> list[str]:
    """Return how a script ran: exit code, isolation, seconds, memory."""
    facts: list[str] = []
    exit_code = read_number(event, "exit_code")
    if exit_code is not None:
        facts.append(f"exit {exit_code:.0f}")
    if event.get("timed_out") is True:
        facts.append("timed out")
    if killer := read_text(event, "killed_by"):
        facts.append(f"ended by {killer}")
    if (isolation := read_text(event, "isolation")) not in ("", "none"):
        facts.append(isolation)
    if memory := read_count(event, "max_rss_bytes"):
        facts.append(format_bytes(memory))
    if seconds := read_number(event, "cpu_seconds"):
        facts.append(f"CPU {format_duration(seconds)}")
    return facts


def _describe_hook(event: JsonObject) -> LineRow | QuietItem:
    verdict, name = read_text(event, "verdict"), read_text(event, "hook")
    output = read_text(event, "output")
    if verdict in ("", "none", "allow"):
        return _quiet(event, "hook", join_words([name, read_text(event, "command"), verdict, first_line(output)]))
    # Only a hook that did not let the call pass is worth a line of its own.
    tone: Tone = "bad" if verdict in ("deny", "error") else "warn"
    seconds = read_number(event, "duration_seconds")
    facts = () if seconds is None else (Fact(format_duration(seconds)),)
    text = join_words([read_text(event, "command"), first_line(output)])
    label = f"Hook {name}: {verdict}"
    return _line(event, "alert", text, label=label, tone=tone, facts=facts, body=output)


def _describe_condensed(event: JsonObject) -> LineRow:
    start, last = read_count(event, "start"), max(read_count(event, "stop") - 1, 0)
    text = f"Events {start} to {last} are summarized in later requests"
    facts = tuple(list_usage_facts(read_object(event, "usage")))
    return _line(event, "log", text, facts=facts, body=read_text(event, "summary"), at=start)


def _describe_changed(event: JsonObject) -> LineRow | QuietItem:
    changes = read_object(event, "changes")
    reason = read_text(event, "reason")
    rules = {name: changes[name] for name in _RULE_CHANGES if name in changes}
    words = [
        f"{name} {first_line(_dump_short(value))}"
        for name, value in changes.items()
        if name not in rules and name not in ("waiting", "saved", "recorded", "spent") and value not in (None, {}, [])
    ]
    waiting = read_object(changes, "waiting")
    if waiting:
        tools = [read_text(read_object(waiting, id), "tool") for id in waiting]
        words.append(f"waits for a decision on {', '.join(tools)}")
    if not rules:
        return _quiet(event, "state", join_words([*words, reason]) or "saved")
    names = ", ".join(name.replace("_", " ") for name in rules)
    return _line(event, "edit", join_words([*words, reason]), label=f"Changed: {names}", body=rules)


def _describe_task_change(event: JsonObject) -> LineRow | QuietItem:
    attempt = read_count(event, "attempt")
    text = join_words([
        read_text(event, "state"),
        read_text(event, "agent"),
        f"attempt {attempt}" if attempt > 1 else "",
        read_text(event, "worker"),
        read_text(event, "reason"),
        read_text(event, "error"),
        read_text(event, "code"),
        first_line(read_text(event, "result")),
        first_line(_dump_short(event["request"])) if event.get("request") else "",
        first_line(_dump_short(event["data"])) if event.get("data") is not None else "",
        first_line(_dump_short(event["metadata"])) if event.get("metadata") else "",
    ])  # fmt: skip
    return _quiet(event, "task", text)


def _describe_note(event: JsonObject) -> QuietItem:
    data = read_object(event, "data")
    text = join_words([read_text(event, "name"), first_line(_dump_short(data)) if data else ""])
    return _quiet(event, read_text(event, "event_type") or "note", text)


def _describe_imported(event: JsonObject) -> LineRow:
    signer = read_text(event, "signer")
    text = join_words([
        f"{count_of(read_count(event, 'count'), 'event')} imported",
        f"signed by {signer[:16]}" if signer else "unsigned",
        "trusted" if event.get("trusted") is True else "not trusted: every call asks until it is adopted",
        read_text(event, "workspace"),
    ])  # fmt: skip
    return _line(event, "down", text)


def _describe_output(event: JsonObject) -> LineRow:
    return _line(event, "check", read_text(event, "output_type"), label="Result", body=event.get("data"))


def _describe_usage(event: JsonObject) -> QuietItem:
    usage = read_object(event, "usage")
    tokens = format_count(read_count(usage, "input_tokens") + read_count(usage, "output_tokens"))
    return _quiet(
        event, "usage", join_words([read_text(event, "purpose"), read_text(event, "model"), f"{tokens} tokens"])
    )


def _describe_retry(event: JsonObject) -> LineRow:
    wait, status = read_number(event, "wait_seconds") or 0.0, read_count(event, "status")
    other = read_text(event, "next_model")
    action = f"Trying {other}" if other else f"Retried after {format_duration(wait)}"
    text = join_words([
        f"{action}: {first_line(read_text(event, 'error'))}",
        f"status {status}" if status else "",
        read_text(event, "model"),
    ])  # fmt: skip
    facts = (Fact(f"attempt {read_count(event, 'attempt')} of {read_count(event, 'attempts')}"),)
    return _line(event, "retry", text, facts=facts)


def _describe_rules(event: JsonObject) -> LineRow:
    paths = ", ".join(read_texts(event, "paths")) or "inherited from another conversation"
    text = f"Rules for agents changed; they are not used until a person agrees: {paths}"
    return _line(event, "alert", text, tone="warn")


def _describe_files(event: JsonObject) -> LineRow | QuietItem:
    if event.get("tree") is None:
        text = f"Files were not stored: {read_text(event, 'reason') or 'unknown reason'}"
        return _line(event, "file", text, tone="warn", body="\n".join(read_texts(event, "skipped")))
    counts = ", ".join(
        f"{read_count(event, name)} {name}" for name in ("added", "changed", "removed") if event.get(name)
    )
    changes = ": ".join(filter(None, (counts, " ".join(read_texts(event, "paths")))))
    summary = f"{count_of(read_count(event, 'files'), 'file')} kept, {format_bytes(read_count(event, 'bytes'))}"
    return _quiet(event, "files", join_words([changes, summary, read_text(event, "by")]))


def _describe_check(event: JsonObject) -> LineRow:
    has_passed = event.get("passed") is True
    facts = [Fact("passed", "good") if has_passed else Fact("failed", "bad")]
    facts += [Fact(fact) for fact in describe_script_facts(event)]
    if seconds := read_number(event, "seconds"):
        facts.append(Fact(format_duration(seconds)))
    body = join_lines(read_text(event, "stdout"), read_text(event, "stderr"))
    icon = "check" if has_passed else "x"
    return _line(event, icon, read_text(event, "command"), label="Check", facts=tuple(facts), body=body)


def _describe_error(event: JsonObject) -> ErrorRow:
    return ErrorRow(
        seqs=(read_count(event, "seq"),),
        moment=read_moment(event),
        message=read_text(event, "message"),
        hint=read_text(event, "hint"),
        code=read_text(event, "code"),
    )


def _describe_pause(event: JsonObject) -> LineRow:
    action = "Interrupted" if event.get("now") is True else "Pause requested"
    text = join_words([f"{action} by {read_text(event, 'by') or 'user'}", read_text(event, "reason")])
    return _line(event, "pause", text)


def _describe_limit(event: JsonObject) -> LineRow:
    name = read_text(event, "limit").replace("_", " ")
    value, bound = read_number(event, "value") or 0.0, read_number(event, "bound") or 0.0
    return _line(
        event,
        "alert",
        f"{value:g} of {bound:g} {name}",
        label="Limit reached",
        tone="warn",
        page="limits",
        page_label="Raise limit",
    )


def _describe_stuck(event: JsonObject) -> LineRow:
    text = f"The agent repeats itself: {read_text(event, 'pattern')}"
    return _line(event, "alert", text, tone="warn", facts=(Fact(count_of(len(read_list(event, "events")), "event")),))


# `cli.describe` has the same kinds, for the terminal.
_DESCRIBERS: Mapping[str, Callable[[JsonObject], Row | QuietItem]] = {
    "CheckRan": _describe_check,
    "Condensed": _describe_condensed,
    "ConversationStarted": _describe_started,
    "ErrorRaised": _describe_error,
    "FilesKept": _describe_files,
    "ForkedFrom": _describe_forked,
    "HookRan": _describe_hook,
    "Imported": _describe_imported,
    "LimitReached": _describe_limit,
    "OutputGiven": _describe_output,
    "PauseRequested": _describe_pause,
    "RequestRetried": _describe_retry,
    "RulesChanged": _describe_rules,
    "ScriptRan": _describe_script,
    "SkillActivated": _describe_skill,
    "SkillSkipped": _describe_skipped,
    "StateChanged": _describe_changed,
    "StuckDetected": _describe_stuck,
    "TaskChanged": _describe_task_change,
    "TaskNoted": _describe_note,
    "UsageAdded": _describe_usage,
}
