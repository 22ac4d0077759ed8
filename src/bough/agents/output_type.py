"""What an agent answers with, where it is not plain text: named for the log, and read back from it."""

from __future__ import annotations

from contextlib import suppress
from typing import Any, cast

from pydantic import PydanticSchemaGenerationError, PydanticUserError, TypeAdapter
from pydantic_ai.output import NativeOutput, PromptedOutput, TextOutput, ToolOutput

from bough.types import JsonObject


def list_types(output_type: Any) -> list[Any]:
    """Return the types that an output type stands for; output functions and `TextOutput` are left out. O(types)."""
    match output_type:
        case ToolOutput():
            return list_types(cast("ToolOutput[Any]", output_type).output)
        case NativeOutput() | PromptedOutput():
            return list_types(cast("NativeOutput[Any]", output_type).outputs)
        case TextOutput():
            return []
        case list() | tuple():
            return [each for part in cast("list[Any]", output_type) for each in list_types(part)]
        case _ if callable(output_type) and not isinstance(output_type, type) and hasattr(output_type, "__code__"):
            return []
        case _:
            return [output_type]


def describe_output_type(output_type: Any) -> JsonObject:
    """Return its qualified name and, where it has one, its JSON schema."""
    types = list_types(output_type)
    name = " | ".join(_name(each) for each in types) or _name(output_type)
    described: JsonObject = {"name": name}
    if (adapter := _adapter(types)) is not None:
        with suppress(PydanticUserError, ValueError):  # a type that only Python knows: its name must do
            described["schema"] = adapter.json_schema()
    return described


def read_output(output_type: Any, data: Any) -> Any:
    """Return recorded JSON as a value of the output type; as it is where that has no types of its own.

    Raises:
        ValidationError: It fits none of the types.
    """
    adapter = _adapter(list_types(output_type))
    return data if adapter is None else adapter.validate_python(data)


def _adapter(types: list[Any]) -> TypeAdapter[Any] | None:
    if not types:
        return None
    union: Any = types[0]
    for each in types[1:]:
        union = union | each
    try:
        return TypeAdapter(union)
    except (PydanticSchemaGenerationError, PydanticUserError):
        return None


def _name(output_type: Any) -> str:
    module, name = getattr(output_type, "__module__", ""), getattr(output_type, "__qualname__", None)
    return str(output_type) if name is None else name if module == "builtins" else f"{module}.{name}"
