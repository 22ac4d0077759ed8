"""The parts of a `StateChanged` that have their form. A log that was imported may contain anything.

A part of another form changes nothing: what was in force before stays in force, and the event stays in the log for
readers. Were it an error instead, one event would make the whole conversation unreadable.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final, TypeAlias, cast, get_args

from bough.errors import InvalidInput
from bough.events.record import Status
from bough.guard import limits_from_json
from bough.types import JsonObject

_Check: TypeAlias = Callable[[Any], bool]
_STATUSES: Final = frozenset(get_args(Status))


def _is_text(value: Any) -> bool:
    return isinstance(value, str)


def _is_text_or_null(value: Any) -> bool:
    return value is None or isinstance(value, str)


def _is_object(value: Any) -> bool:
    return isinstance(value, dict)


def _is_list(value: Any) -> bool:
    return isinstance(value, list | tuple)


def _is_texts(value: Any) -> bool:
    return _is_list(value) and all(map(_is_text, value))


def _is_objects(value: Any) -> bool:
    return _is_list(value) and all(map(_is_object, value))


def _is_text_by_name(value: Any) -> bool:
    return isinstance(value, dict) and all(map(_is_text, cast("JsonObject", value).values()))


def _is_agent(value: Any) -> bool:
    agent = _read_object(value)
    return agent is not None and _is_text(agent.get("name")) and _is_text_or_null(agent.get("model"))


def _are_limits(value: Any) -> bool:
    try:
        limits_from_json(value)
    except InvalidInput:
        return False
    return True


def _or_null(check: _Check) -> _Check:
    return lambda value: value is None or check(value)


def _are_waiting(value: Any) -> bool:
    return isinstance(value, dict) and all(map(_is_waiting, cast("JsonObject", value).values()))


def _is_waiting(value: Any) -> bool:
    call = _read_object(value)
    if call is None:
        return False
    request = {} if call.get("request") is None else _read_object(call["request"])
    return (
        request is not None
        and _is_text_or_null(call.get("risk"))
        and _is_text_or_null(request.get("question"))
        and (request.get("choices") is None or _is_list(request["choices"]))
    )


def _are_edits(value: Any) -> bool:
    edits = _read_object(value)
    return edits is not None and all(map(_is_edit, edits.values()))


def _is_edit(value: Any) -> bool:
    edit = _read_object(value)
    return edit is not None and _is_object(edit.get("after")) and "by" in edit


def _read_object(value: Any) -> JsonObject | None:
    return cast("JsonObject", value) if isinstance(value, dict) else None


_FORMS: Final[Mapping[str, _Check]] = {
    "status": lambda value: isinstance(value, str) and value in _STATUSES,
    "waiting": _are_waiting,
    "approved": _is_texts,
    "edited": _are_edits,
    "policies": _is_object,
    "recorded": _is_object,
    "spent": _or_null(_is_object),
    "title": _is_text_or_null,
    "tags": _is_text_by_name,
    "workspace": _is_text,
    "workspace_policy": _is_text,
    "agent": _is_agent,
    "instructions": _is_text,
}
_RULES: Final[Mapping[str, _Check]] = {
    "policy": _is_object,
    "limits": _or_null(_are_limits),
    "total": _or_null(_are_limits),
    "budgets": _or_null(lambda value: isinstance(value, list | tuple | dict)),
    "hooks": _or_null(_is_objects),
    "secrets": _or_null(_is_texts),
    "sealed": _or_null(_is_text_by_name),
}
"""The form of a rule. A wrong one must not replace the one in force: the rules would be wider without it."""


def read_changes(changes: JsonObject) -> JsonObject:
    """Return the changes that have their form; those of unknown names, too. O(changes)."""
    formed = _keep_formed(changes, _FORMS)
    if rules := formed.get("policies"):
        formed["policies"] = _keep_formed(rules, _RULES)
    return formed


def _keep_formed(values: JsonObject, forms: Mapping[str, _Check]) -> JsonObject:
    return {name: value for name, value in values.items() if name not in forms or forms[name](value)}
