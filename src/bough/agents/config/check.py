"""Validate a configuration. Each mistake is reported with its line and the nearest valid name."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from difflib import get_close_matches
from typing import Any, cast

from pydantic import BaseModel, ValidationError

from bough.agents.config.file import ConfigFile, Key
from bough.agents.config.schema import Config
from bough.errors import InvalidInput


def validate(file: ConfigFile) -> Config:
    """Return the validated configuration.

    Raises:
        InvalidInput: The first mistake. `details` has its `file`, `line`, `key` and `nearest`; `more` has the other
            mistakes.
    """
    config, mistakes = find_mistakes(file)
    if mistakes or config is None:
        first_mistake, *other_mistakes = mistakes
        first_mistake.details["more"] = [mistake.message for mistake in other_mistakes]
        raise first_mistake
    return config


def find_mistakes(file: ConfigFile) -> tuple[Config | None, list[InvalidInput]]:
    """Return the configuration, or None if it does not fit the schema, and its mistakes ordered by line. O(size)."""
    try:
        config = Config.model_validate(file.data)
    except ValidationError as error:
        # A dict, because pydantic reports a value once for each member of its union type.
        by_key = dict(_explain_error(file, detail) for detail in error.errors())
        mistakes, config = list(by_key.values()), None
    else:
        mistakes = list(_check_entries(file, config))
    mistakes.sort(key=lambda mistake: (mistake.details["file"], mistake.details["line"]))
    return config, mistakes


def make_mistake(file: ConfigFile, key: Key, text: str, *, nearest: str | None = None, hint: str = "") -> InvalidInput:
    """Return the error for a mistake, with file, line, key and nearest name in `details`."""
    place = file.place(key)
    path = _format_key(key)
    message = f"{place}: {path}: {text}" if path else f"{place}: {text}"
    return InvalidInput(
        f"{message}; did you mean {nearest!r}?" if nearest else message,
        hint=hint or "fix this line",
        details={"file": str(place.file), "line": place.line, "key": path, "nearest": nearest},
    )


def find_nearest(name: str, names: Collection[str]) -> str | None:
    """Return the known name most similar to `name`; None if no name is similar."""
    matches = get_close_matches(name, names, 1)
    return matches[0] if matches else None


def _format_key(key: Key) -> str:
    return "".join(f"[{part}]" if isinstance(part, int) else f".{part}" for part in key).removeprefix(".")


def _explain_error(file: ConfigFile, error: Any) -> tuple[Key, InvalidInput]:
    """Return the key of an error of pydantic and the mistake to report for it."""
    key, data = _find_key(file, tuple(error["loc"]))
    if error["type"] == "extra_forbidden":
        valid_keys = _list_keys(key[:-1])
        return key, make_mistake(
            file,
            key,
            "unknown key",
            nearest=find_nearest(str(key[-1]), valid_keys),
            hint=f"known keys: {', '.join(valid_keys)}",
        )
    if "[key]" in error["loc"]:
        return key, make_mistake(file, key, "invalid name: expected 1 to 64 letters, digits, `_`, `-` and `.`")
    return key, make_mistake(file, key, f"{error['msg']}, not {str(data)[:80]!r}")


def _find_key(file: ConfigFile, loc: Key) -> tuple[Key, Any]:
    """Return the key in the file for pydantic's path, and the value at that key.

    Parts of the path that are not in the file are skipped: pydantic's path also names members of union types.
    """
    key: list[str | int] = []
    data: Any = file.data
    for part in loc:
        if isinstance(data, dict):
            exists = part in cast("dict[Any, Any]", data)
        else:
            exists = isinstance(data, list) and isinstance(part, int) and part < len(cast("list[Any]", data))
        if exists:
            data = cast("Any", data)[part]
            key.append(part)
    return tuple(key), cast("Any", data)


def _list_keys(path: Key) -> list[str]:
    """Return the keys that the schema allows in the mapping at `path`."""
    model: Any = Config
    for part in path:
        if isinstance(model, type) and issubclass(model, BaseModel) and part in model.model_fields:
            model = model.model_fields[str(part)].annotation
        else:
            model = _get_value_type(model)
    model = next(
        (member for member in _list_members(model) if isinstance(member, type) and issubclass(member, BaseModel)), None
    )
    return [] if model is None else list(model.model_fields)


def _get_value_type(annotation: Any) -> Any:
    """Return the type of the values of a dict or the items of a list; None for other types."""
    return next((getattr(member, "__args__", (None, None))[-1] for member in _list_members(annotation)), None)


def _list_members(annotation: Any) -> tuple[Any, ...]:
    """Return the members of a union type; other types are their own only member."""
    origin = getattr(annotation, "__origin__", None)
    if origin in (dict, list):
        return (annotation,)
    return getattr(annotation, "__args__", (annotation,))


def _check_entries(file: ConfigFile, config: Config) -> Iterator[InvalidInput]:
    """Yield the mistakes that the schema cannot detect: contradictory fields, and references to unknown names."""
    for name, model in config.models.items():
        yield from _check_model(file, name, model)
    for name, server in config.mcp_servers.items():
        if (server.url is None) == (server.command is None):
            yield make_mistake(file, ("mcp_servers", name), "needs exactly one of url and command")
    for name, secret in config.secrets.items():
        if (secret.env is None) == (secret.file is None):
            yield make_mistake(file, ("secrets", name), "needs exactly one of env and file")
    for name in config.agents:
        yield from _check_agent(file, config, name)


def _check_model(file: ConfigFile, name: str, model: Any) -> Iterator[InvalidInput]:
    if isinstance(model, str):
        return
    if (model.model is None) == (model.model_family is None):
        yield make_mistake(file, ("models", name), "needs exactly one of model and model_family")
    elif model.model_family is not None and not model.model_name:
        yield make_mistake(file, ("models", name), "model_family needs model_name")
    elif model.model_family == "azure" and not model.endpoint:
        yield make_mistake(file, ("models", name), "azure needs endpoint")


def _check_agent(file: ConfigFile, config: Config, name: str) -> Iterator[InvalidInput]:
    agent, key = config.agents[name], ("agents", name)
    if agent.system_prompt is not None and agent.system_prompt_path is not None:
        yield make_mistake(file, (*key, "system_prompt_path"), "set system_prompt or system_prompt_path, not both")
    if agent.model is not None and agent.model not in config.models and not is_model_string(agent.model):
        nearest = find_nearest(agent.model, list(config.models))
        yield make_mistake(file, (*key, "model"), f"no model named {agent.model!r}", nearest=nearest)
    references = (
        ("mcp_servers", "server", agent.mcp_servers, list(config.mcp_servers)),
        ("a2a_clients", "A2A client", agent.a2a_clients, list(config.a2a.clients)),
        ("sub_agents", "agent", agent.sub_agents, list(config.agents)),
    )
    for field, noun, names, valid_names in references:
        for index, reference in enumerate(names):
            if reference not in valid_names and not (field == "sub_agents" and ":" in reference):
                nearest = find_nearest(reference, valid_names)
                yield make_mistake(file, (*key, field, index), f"no {noun} named {reference!r}", nearest=nearest)
    for index, reference in enumerate(agent.tools):
        if not _is_factory_name(reference):
            yield make_mistake(file, (*key, "tools", index), f"invalid tool {reference!r}: expected module:factory")
    yield from _check_cycle(file, config, name)


def _check_cycle(file: ConfigFile, config: Config, name: str) -> Iterator[InvalidInput]:
    """Yield a mistake if an agent is its own sub-agent, with the shortest cycle, found by a breadth-first search."""
    paths: list[list[str]] = [[name]]
    visited: set[str] = set()
    for path in paths:
        for sub_agent in config.agents[path[-1]].sub_agents:
            if sub_agent == name:
                text = f"the agent is its own sub-agent: {' > '.join([*path, name])}"
                yield make_mistake(file, ("agents", name, "sub_agents"), text)
                return
            if sub_agent in config.agents and sub_agent not in visited:
                visited.add(sub_agent)
                paths.append([*path, sub_agent])


def is_model_string(name: str) -> bool:
    """Return whether a name is a model string, which needs no entry in `models`."""
    return name == "offline" or ":" in name


def _is_factory_name(name: str) -> bool:
    module, colon, attribute = name.partition(":")
    return bool(colon) and attribute.isidentifier() and all(part.isidentifier() for part in module.split("."))
