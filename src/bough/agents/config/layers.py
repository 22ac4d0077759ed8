"""Merge the configuration of a project into that of the home, bough's own folder.

A project's `config.yaml` may come from a cloned repository, or from a script in the working folder. Unless it is
trusted, it may only add names and narrow existing agents. Its other values are ignored and reported in
`ConfigFile.ignored`.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final, cast

from pydantic import ValidationError

from bough.agents.config.code import is_trusted
from bough.agents.config.file import NAME, ConfigFile, Key, Place, Trust, read_config
from bough.agents.config.schema import Config
from bough.errors import BoughError, InvalidInput, PermissionDenied
from bough.guard import Limits, policy_from_json, policy_named
from bough.guard.confirmation_policy import allows_change
from bough.skills.find.places import project_root
from bough.types import Json, JsonObject

_SECTIONS: Final[tuple[Key, ...]] = (
    ("models",),
    ("mcp_servers",),
    ("a2a", "clients"),
    ("analyzers",),
    ("secrets",),
)
"""The sections in which an untrusted file may add names."""

_ACCESS: Final = ("none", "read", "write", "run")
"""The values of `workspace_access`, narrowest first."""

_SUBSETS: Final = frozenset({"tools", "mcp_servers", "a2a_clients", "sub_agents", "skills", "allow_list", "fallback"})
"""The lists of an agent that an untrusted file may replace with a subset."""


def load_layers(files: Sequence[Path], *, home: Path, is_named: bool, policy: str | None = None) -> ConfigFile:
    """Return the merged configuration of files, given with the lowest precedence first.

    Args:
        home: bough's own folder.
        is_named: Whether the user passed the file, as opposed to working in its folder.
        policy: The settings' confirmation policy.

    Raises:
        InvalidInput: A file is unreadable, is not a YAML mapping, has a duplicate key, or extends itself.
        PermissionDenied: An untrusted file is a link out of its project, or extends a file outside of it.
    """
    config = ConfigFile(files[-1] if files else None)
    for file in dict.fromkeys(files):
        layer = read_config(file)
        _set_trust(layer, home=home, is_named=is_named)
        if layer.trust is Trust.UNTRUSTED:
            # Checked before the merge, because a link could lead to the file of another project.
            _require_inside(layer, file)
            _add_untrusted(config, layer, policy)
        else:
            config.merge(layer)
        config.trust = layer.trust
        config.layers.append(layer)
    return config


def list_files(files: Sequence[Path]) -> list[Path]:
    """Return the files and the files that they extend, also missing ones; an unreadable file extends none."""
    paths: dict[Path, None] = {}
    for file in files:
        paths[file] = None
        try:
            paths |= dict.fromkeys(read_config(file).digests)
        except InvalidInput:
            continue
    return list(paths)


def _set_trust(layer: ConfigFile, *, home: Path, is_named: bool) -> None:
    """Set the trust in the values of a file and of the files that it extends."""
    file, home_folder = Path(os.path.realpath(layer.path or NAME)), Path(os.path.realpath(home))
    if file == home_folder / NAME or (is_named and file.is_relative_to(home_folder)):
        # Files outside the home that it extends may not name code, because others could have written them.
        outside_files = [path for path in layer.digests if not path.is_relative_to(home_folder)]
        layer.mark(dict.fromkeys(outside_files, Trust.NAMED), Trust.TRUSTED)
    elif is_trusted(layer, home):
        layer.mark({}, Trust.TRUSTED)
    else:
        layer.mark({}, Trust.NAMED if is_named else Trust.UNTRUSTED)


def _require_inside(layer: ConfigFile, file: Path) -> None:
    """Check that an untrusted file and the files that it extends are inside its project.

    Raises:
        PermissionDenied: A file is outside.
    """
    project = Path(os.path.realpath(project_root(file.parent)))
    outside_file = next((path for path in layer.digests if not path.is_relative_to(project)), None)
    if outside_file is not None:
        raise PermissionDenied(
            f"{file} uses {outside_file}, which is outside its project, "
            "but the file is not trusted in its current state",
            hint=f"review it, then run: cd {file.parent} && bough skills trust",
            details={"file": str(file), "line": 1},
        )


def _add_untrusted(config: ConfigFile, layer: ConfigFile, policy: str | None) -> None:
    """Add the new names of an untrusted file, and narrow existing agents by its values."""
    if not config.data:
        config.merge(layer)
        return
    if not _is_valid(config.data):
        return  # the later validation reports the mistakes, and the configuration is not used
    if not _is_valid(layer.data):
        # Only the file's own mistakes are reported. Merged with the home, an incomplete entry could become valid.
        config.data, config.places = {}, {}
        config.merge(layer)
        return
    config.digests |= layer.digests
    for section in _SECTIONS:
        for name in _find_mapping(layer.data, section):
            _add_value(config, layer, (*section, name))
    if layer.data.get("hooks"):
        _add_value(config, layer, ("hooks",))
    for name in _find_mapping(layer.data, ("agents",)):
        if name in _find_mapping(config.data, ("agents",)):
            _narrow_agent(config, layer, name, policy)
        else:
            _add_value(config, layer, ("agents", name))


def _is_valid(data: JsonObject) -> bool:
    try:
        Config.model_validate(data)
    except ValidationError:
        return False
    return True


def _add_value(config: ConfigFile, layer: ConfigFile, key: Key) -> None:
    """Add a value of an untrusted file; if the home has another value for the name, report the value as ignored."""
    *parents, name = key
    value = _find_mapping(layer.data, tuple(parents))[str(name)]
    existing = _find_mapping(config.data, tuple(parents)).get(str(name))
    if not existing:
        config.put(key, value, layer)
    elif existing != value:
        config.ignored.append(_make_ignored_error(layer, key, config.place(key)))


def _narrow_agent(config: ConfigFile, layer: ConfigFile, name: str, policy: str | None) -> None:
    """Replace the fields of an agent that an untrusted file narrows, and report its other fields as ignored."""
    existing = _find_mapping(config.data, ("agents", name))
    for field, value in _find_mapping(layer.data, ("agents", name)).items():
        key = ("agents", name, field)
        if existing.get(field) == value:
            continue
        narrowed = _narrow_value(field, existing.get(field), value, policy)
        if narrowed is None:
            config.ignored.append(_make_ignored_error(layer, key, config.place(("agents", name))))
        else:
            # Without a new place, so that relative paths and code in the value are still resolved against the home.
            config.put(key, narrowed, ConfigFile(None))


def _narrow_value(field: str, existing: Any, value: Any, policy: str | None) -> Json:
    """Return the value if it narrows the existing one; None if it would replace or widen it."""
    if field == "confirmation_policy":
        return value if value is not None and is_narrow_policy(value, existing, policy) else None
    if field == "limits":
        return None if value is None else narrow_limits(existing, value)
    if field == "workspace_access":
        return value if _ACCESS.index(value) <= _ACCESS.index(existing or "none") else None
    if field == "allow_list" and existing is None:
        return value
    if field in _SUBSETS and isinstance(value, list) and isinstance(existing, list):
        entries = cast("list[Any]", value)
        return cast(Json, entries) if all(entry in existing for entry in entries) else None
    return None


def is_narrow_policy(value: Any, existing: Any = None, policy: str | None = None) -> bool:
    """Return whether a policy asks in every case in which the existing policy asks.

    Args:
        existing: The existing policy; None for the settings' policy, or `rules` if that is None too.
    """
    old = existing if existing is not None else (policy or "rules")
    try:
        return allows_change(_read_policy(old), _read_policy(value))
    except BoughError:
        return False


def _read_policy(value: Any) -> Any:
    return policy_named(value) if isinstance(value, str) else policy_from_json(value)


def narrow_limits(existing: Mapping[str, Any] | None, value: Mapping[str, Any]) -> JsonObject | None:
    """Return the existing limits merged with new ones; None if a new limit is wider, or `per` differs."""
    old = dict(existing or {})
    per = value.get("per") or old.get("per") or "conversation"
    if existing and per != (old.get("per") or "conversation"):
        return None  # 10 per run and 10 per conversation cannot be compared
    # An agent without limits has the default limits per run, which a project must not exceed.
    bounds = (Limits().bounds if per == "run" and existing is None else {}) | old
    if value.get("unpriced") == "allow" and old.get("unpriced") != "allow":
        return None
    for name, bound in value.items():
        if name in ("per", "unpriced"):
            continue
        if bounds.get(name) is not None and (bound is None or bound > bounds[name]):
            return None
    return cast(JsonObject, {**bounds, **value})


def _find_mapping(data: Mapping[str, Any], key: Key) -> dict[str, Any]:
    """Return the mapping at `key`; empty if it is missing."""
    value: Any = data
    for name in key:
        value = cast("dict[Any, Any]", value).get(name) if isinstance(value, dict) else None
    return cast("dict[str, Any]", value) if isinstance(value, dict) else {}


def _make_ignored_error(layer: ConfigFile, key: Key, place: Place) -> PermissionDenied:
    """Return the error that reports an ignored value; `place` is that of the home's value."""
    ignored_place, path = layer.place(key), ".".join(map(str, key))
    folder = (layer.path or ignored_place.file).parent
    return PermissionDenied(
        f"{ignored_place}: {path} is ignored: it would replace or widen {place}, and the file is not trusted",
        hint=f"review it, then run: cd {folder} && bough skills trust; or use another name",
        details={"file": str(ignored_place.file), "line": ignored_place.line, "key": path},
    )
