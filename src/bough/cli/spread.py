"""Options that belong together, declared once: as the fields of a dataclass that commands take as one parameter."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import fields, is_dataclass
from inspect import Parameter, signature
from typing import Any, get_type_hints


def spread(command: Callable[..., Any]) -> Callable[..., Any]:
    """Return the command with the fields of each dataclass that it takes as options of their own, in its place."""
    hints = get_type_hints(command, include_extras=True)
    groups = {name: hint for name, hint in hints.items() if isinstance(hint, type) and is_dataclass(hint)}
    groups.pop("return", None)
    if not groups:
        return command

    def spread_out(**given: Any) -> Any:
        for name, group in groups.items():
            given[name] = group(**{field.name: given.pop(field.name) for field in fields(group)})
        return command(**given)

    parameters = [each for name in signature(command).parameters for each in _options(command, name, hints)]
    spread_out.__name__, spread_out.__doc__ = command.__name__, command.__doc__
    spread_out.__signature__ = signature(command).replace(parameters=parameters)  # type: ignore[attr-defined]
    spread_out.__annotations__ = {each.name: each.annotation for each in parameters}
    return spread_out


def _options(command: Callable[..., Any], name: str, hints: dict[str, Any]) -> Iterator[Parameter]:
    parameter, hint = signature(command).parameters[name], hints[name]
    if not (isinstance(hint, type) and is_dataclass(hint)):
        yield parameter.replace(annotation=hint)
        return
    of_fields = get_type_hints(hint, include_extras=True)
    for field in fields(hint):
        yield parameter.replace(name=field.name, annotation=of_fields[field.name], default=field.default)
