"""Names of tools and arguments in eval sets of others, and bough's names for the same. One table for both sides."""

from __future__ import annotations

from collections.abc import Mapping

from bough.types import Json, JsonObject

TOOL_ALIASES: Mapping[str, str] = {
    "activate_skill": "load_skill",
    "execute_skill_script": "run_skill_script",
}
"""Tool of others to tool of bough."""

ARGUMENT_ALIASES: Mapping[str, Mapping[str, str]] = {
    "load_skill": {"name": "skill_name"},
    "load_skill_resource": {"name": "skill_name", "file_path": "path", "resource_path": "path"},
    "run_skill_script": {"name": "skill_name", "script_name": "script_path", "file_path": "script_path"},
}
"""Tool of bough to (argument of others to argument of bough)."""


def canonical_tool(name: str) -> str:
    """Return bough's name of a tool."""
    return TOOL_ALIASES.get(name, name)


def canonical_arguments(tool: str, arguments: Mapping[str, Json]) -> JsonObject:
    """Return arguments under bough's names; an argument that has its own name already wins over an alias.

    Args:
        tool: Its canonical name.
    """
    renames = ARGUMENT_ALIASES.get(tool)
    if not renames:
        return dict(arguments)
    renamed = {renames[key]: value for key, value in arguments.items() if key in renames}
    return renamed | {key: value for key, value in arguments.items() if key not in renames}
