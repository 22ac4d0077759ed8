"""Unique names for the tools of MCP servers, in the form that model providers accept: `[a-zA-Z0-9_-]{1,64}`."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import replace
from hashlib import sha256
from typing import Any

from pydantic_ai.toolsets import ToolsetTool

from bough.errors import InvalidInput

MAX_NAME = 64
_SEPARATORS = re.compile(r"[ .:/]")
_FORBIDDEN = re.compile(r"[^a-zA-Z0-9_-]")
_SHOWN_RENAMES = 5


class ToolNames:
    """The names under which the tools of several servers are offered to a model.

    A tool keeps its name for the whole conversation, because its calls are recorded with that name.
    """

    def __init__(self) -> None:
        self._names: dict[tuple[str, str], str] = {}
        self._reported: set[str] = set()

    def name_tools(self, server: str, tools: Mapping[str, object]) -> dict[str, str]:
        """Return the offered name of each tool. A name that another server uses is prefixed with this server's name."""
        return {tool: self._name_tool(server, tool) for tool in sorted(tools)}

    def find_fault(self, server: str, names: Mapping[str, str]) -> InvalidInput | None:
        """Return the error that reports a server's changed names; None if none changed, or it was reported before."""
        renamed = {tool: name for tool, name in names.items() if tool != name}
        if not renamed or server in self._reported:
            return None
        self._reported.add(server)
        listed = [f"{ascii(tool)[:80]} is {name}" for tool, name in list(renamed.items())[:_SHOWN_RENAMES]]
        more = f", and {len(renamed) - len(listed)} more" if len(renamed) > len(listed) else ""
        return InvalidInput(
            f"tools of the MCP server {server!r} were renamed: {', '.join(listed)}{more}",
            hint=f"a name has at most {MAX_NAME} letters, digits, _ and -, and belongs to one tool",
            details={"server": server, "renamed": renamed},
        )

    def _name_tool(self, server: str, tool: str) -> str:
        key = (server, tool)
        if key not in self._names:
            used_names = set(self._names.values())
            candidates = (make_safe(tool), make_safe(f"{server}_{tool}"), _add_digest(tool, f"{server}\0{tool}"))
            self._names[key] = next(name for name in candidates if name not in used_names)
        return self._names[key]


def rename_tool(tool: ToolsetTool[Any], name: str) -> ToolsetTool[Any]:
    """Return a tool that is offered under another name. Calls of its toolset still need the original name."""
    return tool if tool.tool_def.name == name else replace(tool, tool_def=replace(tool.tool_def, name=name))


def make_safe(name: str) -> str:
    """Return a name that providers accept. If other characters than separators are replaced, it ends in a digest."""
    # Without the digest, names that differ only in replaced characters would become equal.
    plain = _SEPARATORS.sub("_", name)
    safe = _FORBIDDEN.sub("_", plain)
    return safe if safe == plain and 0 < len(safe) <= MAX_NAME else _add_digest(safe, name)


def _add_digest(name: str, source: str) -> str:
    """Return a safe form of a name that ends in a digest of `source`."""
    digest = sha256(source.encode("utf-8", "surrogatepass")).hexdigest()[:8]
    return f"{_FORBIDDEN.sub('_', name)[: MAX_NAME - len(digest) - 1]}_{digest}"
