"""Loads hooks from the files of OpenHands and Claude Code."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any, cast

from bough.errors import InvalidInput
from bough.guard.hooks import Hook, HookKind, HookSet
from bough.types import Json, JsonObject

MAX_BYTES = 1 << 20
_KINDS = {name: kind for kind in HookKind for name in (kind.value, kind.name.lower())}
PROJECT_FILES = (".bough/hooks.json", ".openhands/hooks.json", ".claude/settings.json")
"""Hook files of a project, relative to it. A person trusts each of them separately."""
_HINT = 'the shape is {"hooks": {"PreToolUse": [{"matcher": "*", "hooks": [{"type": "command", "command": "…"}]}]}}'


def load_hooks(path: Path) -> HookSet:
    """Return the hooks of a file (`hooks.json`, or a `settings.json` with a `hooks` key); none if the file is missing.

    The notes list what was ignored in the file.

    Raises:
        InvalidInput: The file cannot be read, or one of its hooks is invalid.
    """
    data = _read_object(path)
    notes: list[str] = []
    hooks = tuple(
        hook for name, groups in _list_sections(data, path) for hook in _parse_section(name, groups, path, notes)
    )
    return HookSet(hooks, tuple(notes))


def _read_object(path: Path) -> JsonObject:
    """Return the JSON object in a file; an empty one if the file is missing."""
    try:
        with path.open("rb") as handle:
            content = handle.read(MAX_BYTES + 1)
        data = json.loads(content) if len(content) <= MAX_BYTES else None
    except (FileNotFoundError, NotADirectoryError):
        return {}
    except (OSError, ValueError, RecursionError) as error:
        raise InvalidInput(f"{path} cannot be read: {error}", hint="fix it or remove it") from error
    if not isinstance(data, dict):
        raise InvalidInput(f"{path} does not contain a JSON object, or is larger than {MAX_BYTES} bytes", hint=_HINT)
    return cast(JsonObject, data)


def _list_sections(data: JsonObject, path: Path) -> list[tuple[str, Json]]:
    """Return the name and groups of each section. Only `hooks.json` may omit the outer key `hooks`."""
    if "hooks" in data:
        sections = data["hooks"]
        if not isinstance(sections, dict):
            raise InvalidInput(f"{path}: `hooks` must be an object", hint=_HINT)
        return list(cast(JsonObject, sections).items())
    return [] if path.name == "settings.json" else list(data.items())


def _parse_section(name: str, groups: Json, path: Path, notes: list[str]) -> Iterator[Hook]:
    kind = _KINDS.get(name)
    if kind is None:  # another agent may support this kind, so the file is not rejected
        notes.append(f"{path}: bough has no hook kind {name!r}; its hooks never run")
        return
    for group in _require_list(groups, f"{path}: {name}"):
        entry = _require_object(group, f"{path}: {name}")
        matcher = entry.get("matcher")
        for item in _require_list(entry.get("hooks", [entry] if "command" in entry else []), f"{path}: {name}.hooks"):
            yield from _parse_hook(kind, matcher, _require_object(item, f"{path}: {name}.hooks"), path, notes)


def _parse_hook(kind: HookKind, matcher: Json, item: JsonObject, path: Path, notes: list[str]) -> Iterator[Hook]:
    # Claude Code also has hooks of type `prompt`. The note tells people not to rely on them.
    if item.get("type", "command") != "command":
        notes.append(f"{path}: a {kind.value} hook of type {item.get('type')!r} never runs; only commands do")
        return
    subject = f"{path}: a {kind.value} hook"
    timeout = item.get("timeout")
    if timeout is not None and (isinstance(timeout, bool) or not isinstance(timeout, (int, float))):
        raise InvalidInput(f"{subject} has the timeout {timeout!r}", hint="give seconds as a number")
    failure = item.get("onFailure", item.get("on_failure", "deny"))
    if failure not in ("deny", "continue"):
        raise InvalidInput(f"{subject} has onFailure {failure!r}", hint="choose `deny` or `continue`")
    try:
        yield Hook(
            kind=kind,
            command=_require_text(item.get("command", ""), f"{subject}: command"),
            matcher=_require_text("*" if matcher is None else matcher, f"{subject}: matcher"),
            timeout_seconds=60.0 if timeout is None else float(cast(float, timeout)),
            on_failure=failure,
            waits=item.get("async") is not True,
            source=str(path),
        )
    except InvalidInput as error:
        raise InvalidInput(f"{path}: {error.message}", hint=error.hint or _HINT) from error


def _require_list(value: Json, subject: str) -> list[Any]:
    if not isinstance(value, list):
        raise InvalidInput(f"{subject} must be a list", hint=_HINT)
    return cast(list[Any], value)


def _require_object(value: Json, subject: str) -> JsonObject:
    if not isinstance(value, dict):
        raise InvalidInput(f"{subject} must contain objects", hint=_HINT)
    return cast(JsonObject, value)


def _require_text(value: Json, subject: str) -> str:
    if not isinstance(value, str):
        raise InvalidInput(f"{subject} must be a text, not {value!r}", hint=_HINT)
    return value
