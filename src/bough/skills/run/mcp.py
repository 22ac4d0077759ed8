"""The MCP servers of a skill: `mcp_tools` in its frontmatter and `.mcp.json` in its folder.

Source: OpenHands (`mcp_tools`, FastMCP's format); `${VAR}`, `${VAR:-default}` and `${SKILL_ROOT}` are expanded.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, cast

from bough.errors import BoughError, InvalidInput
from bough.skills.model import Diagnostic, Skill
from bough.skills.read.fields import as_text
from bough.skills.read.resources import read_resource

_VARIABLE = re.compile(r"\$\{([A-Za-z_][A-Za-z0-9_]*)(?::-([^}]*))?\}")
_NAME = re.compile(r"[A-Za-z0-9_.-]{1,64}")


@dataclass(frozen=True, kw_only=True)
class McpServer:
    """How a server is started (`stdio`) or reached (`http`, `sse`).

    Attributes:
        command: The program, for `stdio`.
        cwd: Its working folder; None: any.
        url: The address, for `http` and `sse`.
    """

    name: str
    transport: Literal["stdio", "http", "sse"]
    command: str = ""
    args: tuple[str, ...] = ()
    env: Mapping[str, str] = field(default_factory=dict[str, str])
    cwd: str | None = None
    url: str = ""
    headers: Mapping[str, str] = field(default_factory=dict[str, str])


def list_servers(skill: Skill, env: Mapping[str, str], *, root: str | None = None) -> tuple[McpServer, ...]:
    """Return the servers of a skill, sorted by name, with variables expanded from `env`.

    Servers of the frontmatter take precedence over those of `.mcp.json`.

    Args:
        root: Value of `${SKILL_ROOT}`, and the servers' working folder; None: the skill's own folder.

    Raises:
        InvalidInput: A server has neither command nor url, is malformed, or uses a variable that is not set.
    """
    folder = str(skill.folder.absolute()) if skill.folder else ""
    # SKILL_ROOT last: a variable of the environment must not replace it.
    variables = {**env, "SKILL_ROOT": folder if root is None else root}
    configured = _read_mcp_json(skill) | _unwrap_servers(skill.mcp_tools, skill.name)
    return tuple(_parse_server(name, configured[name], variables) for name in sorted(configured))


def list_server_commands(skill: Skill) -> dict[str, str]:
    """Return each server of a skill with its command or address as configured, for display.

    If the configuration is invalid, returns the error message under the name `.mcp.json`.
    """
    try:
        configured = _read_mcp_json(skill) | _unwrap_servers(skill.mcp_tools, skill.name)
    except InvalidInput as error:
        return {".mcp.json": error.message}
    # Variables are not expanded: the description is displayed, and their values may be secrets.
    return {name: _describe(configured[name]) for name in sorted(configured)}


def check_servers(skill: Skill, env: Mapping[str, str]) -> tuple[Diagnostic, ...]:
    """Return a warning if the configuration of a skill's servers is invalid. The skill works without them."""
    try:
        list_servers(skill, env)
    except InvalidInput as error:
        path = "" if skill.path is None else str(skill.path)
        return (Diagnostic("mcp-invalid", "warning", error.message, None, error.hint, path),)
    return ()


def _describe(value: Any) -> str:
    if not isinstance(value, Mapping):
        return as_text(value)
    config = cast("Mapping[str, Any]", value)
    if "url" in config:
        return as_text(config["url"])
    args = config.get("args", [])
    words = [as_text(arg) for arg in cast("list[Any]", args)] if isinstance(args, list) else [as_text(args)]
    return " ".join([as_text(config.get("command", "")), *words])


def _read_mcp_json(skill: Skill) -> dict[str, Any]:
    if skill.folder is None or not (skill.folder / ".mcp.json").is_file():
        return {}
    try:
        data: Any = json.loads(read_resource(skill.folder, ".mcp.json"))
    except (ValueError, RecursionError) as error:
        raise InvalidInput(f".mcp.json of {skill.name!r} is not valid JSON: {error}", hint="fix that line") from error
    except BoughError as error:
        raise InvalidInput(f".mcp.json of {skill.name!r} cannot be read: {error.message}") from error
    return _unwrap_servers(data, skill.name)


def _unwrap_servers(value: Any, where: str) -> dict[str, Any]:
    if not isinstance(value, Mapping):
        raise _not_a_mapping(where)
    mapping = cast("Mapping[str, Any]", value)
    inner: Any = mapping.get("mcpServers", mapping)
    if not isinstance(inner, Mapping):
        raise _not_a_mapping(where)
    return dict(cast("Mapping[str, Any]", inner))


def _not_a_mapping(where: str) -> InvalidInput:
    message = f"the MCP servers of {where!r} are not a mapping"
    return InvalidInput(message, hint='write {"mcpServers": {"name": {…}}}')


def _parse_server(name: str, value: Any, env: Mapping[str, str]) -> McpServer:
    if not _NAME.fullmatch(name):
        raise InvalidInput(f"invalid MCP server name {name[:80]!r}", hint="use letters, digits, _ . -")
    if not isinstance(value, Mapping):
        raise InvalidInput(f"MCP server {name!r} is not a mapping", hint="set `command` and `args`, or `url`")
    config = cast("Mapping[str, Any]", expand(value, env, name))
    if url := as_text(config.get("url", "")):
        headers = _parse_texts(config.get("headers"), name)
        return McpServer(name=name, transport=_parse_transport(config, url), url=url, headers=headers)
    command = as_text(config.get("command", ""))
    if not command:
        raise InvalidInput(f"MCP server {name!r} has neither `command` nor `url`", hint="set one of them")
    args = config.get("args", [])
    if not isinstance(args, list):
        raise InvalidInput(f"`args` of MCP server {name!r} is not a list", hint='for example ["-m", "server"]')
    words = tuple(as_text(arg) for arg in cast("list[Any]", args))
    cwd = as_text(config.get("cwd", "")) or env["SKILL_ROOT"] or None
    return McpServer(
        name=name, transport="stdio", command=command, args=words, env=_parse_texts(config.get("env"), name), cwd=cwd
    )


def _parse_transport(config: Mapping[str, Any], url: str) -> Literal["http", "sse"]:
    if not url.startswith(("http://", "https://")):
        raise InvalidInput(f"invalid MCP server address {url[:80]!r}", hint="use an http:// or https:// URL")
    kind = as_text(config.get("transport", config.get("type", ""))).lower()
    return "sse" if kind == "sse" else "http"


def _parse_texts(value: Any, name: str) -> dict[str, str]:
    if value is None or value == "":
        return {}
    if not isinstance(value, Mapping):
        raise InvalidInput(f"`env` or `headers` of MCP server {name!r} is not a mapping", hint="write `NAME: value`")
    return {key: as_text(item) for key, item in cast("Mapping[str, Any]", value).items()}


def expand(value: Any, env: Mapping[str, str], where: str = "") -> Any:
    """Return a JSON value with every `${VAR}` and `${VAR:-default}` in its texts expanded, not recursively.

    Raises:
        InvalidInput: A variable is not set and has no default.
    """

    def put(match: re.Match[str]) -> str:
        if match[1] in env:
            return env[match[1]]  # not expanded again: a value with `${…}` must not pull in another variable
        if match[2] is None:
            raise InvalidInput(
                f"{where}: variable {match[1]} is not set", hint=f"set it, or write ${{{match[1]}:-default}}"
            )
        return match[2]

    match value:
        case str():
            return _VARIABLE.sub(put, value)
        case Mapping():
            return {key: expand(item, env, where) for key, item in cast("Mapping[str, Any]", value).items()}
        case list():
            return [expand(item, env, where) for item in cast("list[Any]", value)]
        case _:
            return value
