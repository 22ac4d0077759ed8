"""Structured output types of agents: describing them for the log, and reading recorded values."""

from __future__ import annotations

from contextlib import suppress
from typing import Any, cast

from pydantic import PydanticSchemaGenerationError, PydanticUserError, TypeAdapter
from pydantic_ai.output import NativeOutput, PromptedOutput, TextOutput, ToolOutput

from bough.types import JsonObject


def list_types(output_type: Any) -> list[Any]:
    """Return all types in an output type, except output functions and `TextOutput`. O(types)."""
    match output_type:
        case ToolOutput():
            return list_types(cast("ToolOutput[Any]", output_type).output)
        case NativeOutput() | PromptedOutput():
            return list_types(cast("NativeOutput[Any]", output_type).outputs)
        case TextOutput():
            return []
        case list() | tuple():
            return [member for part in cast("list[Any]", output_type) for member in list_types(part)]
        # An output function. Types such as `list[int]` are callable too, but have no `__code__`.
        case _ if callable(output_type) and not isinstance(output_type, type) and hasattr(output_type, "__code__"):
            return []
        case _:
            return [output_type]


def describe_output_type(output_type: Any) -> JsonObject:
    """Return the qualified name of an output type and, if it has one, its JSON schema."""
    types = list_types(output_type)
    name = " | ".join(_get_qualified_name(member) for member in types) or _get_qualified_name(output_type)
    description: JsonObject = {"name": name}
    adapter = _make_adapter(types)
    if adapter is not None:
        with suppress(PydanticUserError, ValueError):  # a type without a JSON schema is recorded by name only
            description["schema"] = adapter.json_schema()
    return description


def read_output(output_type: Any, data: Any) -> Any:
    """Return recorded JSON as a value of the output type; unchanged if the output type has only functions.

    Raises:
        ValidationError: The JSON matches none of the types.
    """
    adapter = _make_adapter(list_types(output_type))
    return data if adapter is None else adapter.validate_python(data)


def _make_adapter(types: list[Any]) -> TypeAdapter[Any] | None:
    """Return the validator for a union of types; None if pydantic has no schema for one of them."""
    if not types:
        return None
    union: Any = types[0]
    for member in types[1:]:
        union = union | member
    try:
        return TypeAdapter(union)
    except (PydanticSchemaGenerationError, PydanticUserError):
        return None


def _get_qualified_name(output_type: Any) -> str:
    module, name = getattr(output_type, "__module__", ""), getattr(output_type, "__qualname__", None)
    if name is None:
        return str(output_type)
    return name if module == "builtins" else f"{module}.{name}"
