"""Reads hooks from the files that OpenHands and Claude Code use, and knows which places are looked into."""

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
"""Where a project may bring hooks along, relative to it: what trust in its hooks has to cover."""
_HINT = 'the shape is {"hooks": {"PreToolUse": [{"matcher": "*", "hooks": [{"type": "command", "command": "…"}]}]}}'


def load_hooks(path: Path) -> HookSet:
    """Return the hooks of a file (`hooks.json`, or a `settings.json` with a `hooks` key); none if there is no file.

    What was left out of it is in the notes.

    Raises:
        InvalidInput: The file cannot be read or a hook in it is wrong; a guard that is half there is none.
    """
    data = _read(path)
    notes: list[str] = []
    hooks = tuple(hook for name, groups in _sections(data, path) for hook in _section(name, groups, path, notes))
    return HookSet(hooks, tuple(notes))


def _read(path: Path) -> JsonObject:
    try:
        with path.open("rb") as handle:
            text = handle.read(MAX_BYTES + 1)
        data = json.loads(text) if len(text) <= MAX_BYTES else None
    except (FileNotFoundError, NotADirectoryError):
        return {}
    except (OSError, ValueError, RecursionError) as error:
        raise InvalidInput(f"{path} cannot be read: {error}", hint="fix it or remove it") from error
    if not isinstance(data, dict):
        raise InvalidInput(f"{path} does not contain a JSON object, or is larger than {MAX_BYTES} bytes", hint=_HINT)
    return cast(JsonObject, data)


def _sections(data: JsonObject, path: Path) -> list[tuple[str, Json]]:
    """The kinds of a file; a settings file without `hooks` has none, a file of hooks alone needs no outer key."""
    if "hooks" in data:
        inner = data["hooks"]
        if not isinstance(inner, dict):
            raise InvalidInput(f"{path}: `hooks` must be an object", hint=_HINT)
        return list(cast(JsonObject, inner).items())
    return [] if path.name == "settings.json" else list(data.items())


def _section(name: str, groups: Json, path: Path, notes: list[str]) -> Iterator[Hook]:
    kind = _KINDS.get(name)
    if kind is None:
        notes.append(f"{path}: bough has no moment called {name!r}; its hooks are never asked")
        return
    for group in _list(groups, f"{path}: {name}"):
        entry = _object(group, f"{path}: {name}")
        matcher = entry.get("matcher")
        for item in _list(entry.get("hooks", [entry] if "command" in entry else []), f"{path}: {name}.hooks"):
            yield from _hook(kind, matcher, _object(item, f"{path}: {name}.hooks"), path, notes)


def _hook(kind: HookKind, matcher: Json, item: JsonObject, path: Path, notes: list[str]) -> Iterator[Hook]:
    if item.get("type", "command") != "command":
        notes.append(f"{path}: a {kind.value} hook of type {item.get('type')!r} is not asked; only commands are")
        return
    where = f"{path}: a {kind.value} hook"
    timeout = item.get("timeout")
    if timeout is not None and (isinstance(timeout, bool) or not isinstance(timeout, (int, float))):
        raise InvalidInput(f"{where} has the timeout {timeout!r}", hint="give seconds as a number")
    failure = item.get("onFailure", item.get("on_failure", "deny"))
    if failure not in ("deny", "continue"):
        raise InvalidInput(f"{where} has onFailure {failure!r}", hint="choose `deny` or `continue`")
    try:
        yield Hook(
            kind=kind,
            command=_text(item.get("command", ""), f"{where}: command"),
            matcher=_text("*" if matcher is None else matcher, f"{where}: matcher"),
            timeout_seconds=60.0 if timeout is None else float(cast(float, timeout)),
            on_failure=failure,
            waits=item.get("async") is not True,
            source=str(path),
        )
    except InvalidInput as error:
        raise InvalidInput(f"{path}: {error.message}", hint=error.hint or _HINT) from error


def _list(value: Json, where: str) -> list[Any]:
    if not isinstance(value, list):
        raise InvalidInput(f"{where} must be a list", hint=_HINT)
    return cast(list[Any], value)


def _object(value: Json, where: str) -> JsonObject:
    if not isinstance(value, dict):
        raise InvalidInput(f"{where} must hold objects", hint=_HINT)
    return cast(JsonObject, value)


def _text(value: Json, where: str) -> str:
    if not isinstance(value, str):
        raise InvalidInput(f"{where} must be a text, not {value!r}", hint=_HINT)
    return value
