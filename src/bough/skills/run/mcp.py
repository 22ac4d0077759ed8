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
    """How to start an MCP server (`stdio`) or connect to it (`http`, `sse`).

    Attributes:
        command: The program, for `stdio`.
        cwd: The working folder of the program; None: any.
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
    configurations = _read_mcp_file(skill) | _extract_servers(skill.mcp_tools, skill.name)
    return tuple(_parse_server(name, configurations[name], variables) for name in sorted(configurations))


def list_server_commands(skill: Skill) -> dict[str, str]:
    """Return each server of a skill with its command or address as configured, for display.

    If the configuration is invalid, returns the error message under the name `.mcp.json`.
    """
    try:
        configurations = _read_mcp_file(skill) | _extract_servers(skill.mcp_tools, skill.name)
    except InvalidInput as error:
        return {".mcp.json": error.message}
    # Variables are not expanded: the result is displayed, and the values of variables may be secrets.
    return {name: _describe_server(configurations[name]) for name in sorted(configurations)}


def check_servers(skill: Skill, env: Mapping[str, str]) -> tuple[Diagnostic, ...]:
    """Return a warning if the MCP configuration of a skill is invalid; the skill can be used without its servers."""
    try:
        list_servers(skill, env)
    except InvalidInput as error:
        path = "" if skill.path is None else str(skill.path)
        return (Diagnostic("mcp-invalid", "warning", error.message, None, error.hint, path),)
    return ()


def _describe_server(value: Any) -> str:
    """Return a server's address, or its command with arguments, as configured."""
    if not isinstance(value, Mapping):
        return as_text(value)
    config = cast("Mapping[str, Any]", value)
    if "url" in config:
        return as_text(config["url"])
    args = config.get("args", [])
    words = [as_text(arg) for arg in cast("list[Any]", args)] if isinstance(args, list) else [as_text(args)]
    return " ".join([as_text(config.get("command", "")), *words])


def _read_mcp_file(skill: Skill) -> dict[str, Any]:
    """Return the server configurations in `.mcp.json`; empty if the skill has no such file."""
    if skill.folder is None or not (skill.folder / ".mcp.json").is_file():
        return {}
    try:
        data: Any = json.loads(read_resource(skill.folder, ".mcp.json"))
    except (ValueError, RecursionError) as error:
        raise InvalidInput(
            f".mcp.json of {skill.name!r} is not valid JSON: {error}", hint="correct the JSON"
        ) from error
    except BoughError as error:
        raise InvalidInput(f".mcp.json of {skill.name!r} cannot be read: {error.message}") from error
    return _extract_servers(data, skill.name)


def _extract_servers(value: Any, owner: str) -> dict[str, Any]:
    """Return the configurations by server name; the key `mcpServers` around them is optional."""
    if not isinstance(value, Mapping):
        raise _make_mapping_error(owner)
    mapping = cast("Mapping[str, Any]", value)
    inner: Any = mapping.get("mcpServers", mapping)
    if not isinstance(inner, Mapping):
        raise _make_mapping_error(owner)
    return dict(cast("Mapping[str, Any]", inner))


def _make_mapping_error(owner: str) -> InvalidInput:
    message = f"the MCP servers of {owner!r} are not a mapping"
    return InvalidInput(message, hint='write {"mcpServers": {"name": {…}}}')


def _parse_server(name: str, value: Any, env: Mapping[str, str]) -> McpServer:
    """Return a server from its configuration, with variables expanded."""
    if not _NAME.fullmatch(name):
        raise InvalidInput(f"invalid MCP server name {name[:80]!r}", hint="use letters, digits, _ . -")
    if not isinstance(value, Mapping):
        raise InvalidInput(f"MCP server {name!r} is not a mapping", hint="set `command` and `args`, or `url`")
    config = cast("Mapping[str, Any]", expand(value, env, name))
    if url := as_text(config.get("url", "")):
        headers = _parse_text_mapping(config.get("headers"), name)
        return McpServer(name=name, transport=_parse_transport(config, url), url=url, headers=headers)
    command = as_text(config.get("command", ""))
    if not command:
        raise InvalidInput(f"MCP server {name!r} has neither `command` nor `url`", hint="set one of them")
    args = config.get("args", [])
    if not isinstance(args, list):
        raise InvalidInput(f"`args` of MCP server {name!r} is not a list", hint='for example ["-m", "server"]')
    arguments = tuple(as_text(arg) for arg in cast("list[Any]", args))
    cwd = as_text(config.get("cwd", "")) or env["SKILL_ROOT"] or None
    return McpServer(
        name=name,
        transport="stdio",
        command=command,
        args=arguments,
        env=_parse_text_mapping(config.get("env"), name),
        cwd=cwd,
    )


def _parse_transport(config: Mapping[str, Any], url: str) -> Literal["http", "sse"]:
    if not url.startswith(("http://", "https://")):
        raise InvalidInput(f"invalid MCP server address {url[:80]!r}", hint="use an http:// or https:// URL")
    kind = as_text(config.get("transport", config.get("type", ""))).lower()
    return "sse" if kind == "sse" else "http"


def _parse_text_mapping(value: Any, name: str) -> dict[str, str]:
    if value is None or value == "":
        return {}
    if not isinstance(value, Mapping):
        raise InvalidInput(f"`env` or `headers` of MCP server {name!r} is not a mapping", hint="write `NAME: value`")
    return {key: as_text(item) for key, item in cast("Mapping[str, Any]", value).items()}


def expand(value: Any, env: Mapping[str, str], owner: str = "") -> Any:
    """Return a JSON value with every `${VAR}` and `${VAR:-default}` in its texts replaced by the value in `env`.

    Args:
        owner: The server's name, for the error message.

    Raises:
        InvalidInput: A variable is not set and has no default.
    """

    def replace_variable(match: re.Match[str]) -> str:
        if match[1] in env:
            return env[match[1]]  # not expanded again: a value that contains `${…}` must not insert another variable
        if match[2] is None:
            raise InvalidInput(
                f"{owner}: variable {match[1]} is not set", hint=f"set it, or write ${{{match[1]}:-default}}"
            )
        return match[2]

    match value:
        case str():
            return _VARIABLE.sub(replace_variable, value)
        case Mapping():
            return {key: expand(item, env, owner) for key, item in cast("Mapping[str, Any]", value).items()}
        case list():
            return [expand(item, env, owner) for item in cast("list[Any]", value)]
        case _:
            return value
